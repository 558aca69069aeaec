#include "engine/cuda_step_executor.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "engine/cache_spec.h"

namespace baton {
namespace {

static_assert(kMaxCudaRing >= kMaxPipelineDepth);
static_assert(kMaxCudaDrafts >= kMaxDraftTokens);

// A failed step gives no report: ask the driver now and then.
constexpr uint64_t kMissesPerCheck = 1 << 16;

CudaDeviceOptions DeviceOptions(const CudaStepExecutor::Options& options) {
  return {
      .device = options.device,
      .ring_size = options.engine.pipeline_depth,
      .max_sequences = options.engine.max_running_requests,
      .max_tokens = options.engine.max_rows(),
      .max_blocks = options.engine.max_running_requests *
                    std::min(options.num_blocks,
                             CacheSpec::BlocksFor(options.max_context_tokens)),
      .num_drafts = options.engine.num_draft_tokens,
      .model = {.vocab_size = options.vocab_size,
                .num_blocks = options.num_blocks,
                .right_drafts = options.right_drafts,
                .padding = 0,
                .step_nanoseconds = static_cast<uint64_t>(
                    absl::ToInt64Nanoseconds(options.step_time))}};
}

ModelRunnerInfo MakeInfo(const CudaStepExecutor::Options& options) {
  ModelRunnerInfo info;
  info.vocab_size = options.vocab_size;
  info.max_context_tokens = options.max_context_tokens;
  info.has_drafter = options.engine.num_draft_tokens > 0;
  info.cache.groups = {{"rows", sizeof(uint64_t)}};
  info.fingerprint = "stand-in";
  return info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaStepExecutor>> CudaStepExecutor::Create(
    const Options& options, const CudaApi* api) {
  std::unique_ptr<CudaStepExecutor> executor(
      new CudaStepExecutor(options, api));
  char error[512] = {};
  executor->device_ = api->create(api->context, &executor->device_options_,
                                  &executor->memory_, error, sizeof(error));
  if (executor->device_ == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("GPU ", options.device, ": ", error));
  }
  return executor;
}

CudaStepExecutor::CudaStepExecutor(const Options& options, const CudaApi* api)
    : api_(api),
      device_options_(DeviceOptions(options)),
      info_(MakeInfo(options)) {}

CudaStepExecutor::~CudaStepExecutor() {
  CHECK(idle());
  if (device_ != nullptr) api_->destroy(device_);
}

void CudaStepExecutor::LaunchForward(const StepInput* input,
                                     StepOutput* output) {
  const uint64_t step = launched_.load() + 1;
  const size_t place = step % device_options_.ring_size;
  launches_[place] = {input, output};
  const size_t bytes = Pack(*input, step, memory_.inputs[place]);
  CHECK_EQ(api_->copy_input(device_, step, bytes), 0) << api_->error(device_);
}

DeviceEvent CudaStepExecutor::LaunchSample(const StepInput* input,
                                           StepOutput* output) {
  const uint64_t step = launched_.load() + 1;
  const Launch& launch = launches_[step % device_options_.ring_size];
  CHECK(launch.input == input && launch.output == output);
  const auto num_sequences = static_cast<uint32_t>(input->rows.size());
  CHECK_EQ(api_->launch(device_, step, num_sequences), 0)
      << api_->error(device_);
  launched_.store(step);
  return DeviceEvent(step);
}

bool CudaStepExecutor::HasFired(DeviceEvent event) const {
  const uint64_t step = event.value();
  // Its place has been given on.
  if (step + device_options_.ring_size <= launched_.load()) return true;
  if (!IsDone(step)) return false;
  TakeReport(launches_[step % device_options_.ring_size], Report(step));
  return true;
}

bool CudaStepExecutor::Poll() {
  bool any = false;
  while (polled_.load() < launched_.load() && IsDone(polled_.load() + 1)) {
    if (after_step_.run != nullptr) after_step_.run(after_step_.argument);
    polled_.fetch_add(1);
    any = true;
  }
  if (any || idle()) {
    num_misses_ = 0;
  } else if (++num_misses_ % kMissesPerCheck == 0) {
    CHECK_EQ(api_->check(device_), 0) << api_->error(device_);
  }
  return any;
}

size_t CudaStepExecutor::Pack(const StepInput& input, uint64_t step,
                              void* to) const {
  const auto num_sequences = static_cast<uint32_t>(input.rows.size());
  const auto num_tokens = static_cast<uint32_t>(input.token_ids.size());
  const auto num_blocks = static_cast<uint32_t>(input.block_tables.size());
  CHECK(num_sequences > 0 && num_sequences <= device_options_.max_sequences);
  CHECK_LE(num_tokens, device_options_.max_tokens);
  CHECK_LE(num_blocks, device_options_.max_blocks);
  const CudaStepInput packed = ViewCudaInput(to, num_sequences, num_tokens);
  *packed.header = {.step = step,
                    .num_sequences = num_sequences,
                    .num_tokens = num_tokens,
                    .num_blocks = num_blocks,
                    .padding = {}};
  for (uint32_t i = 0; i < num_sequences; ++i) {
    const StepRows& rows = input.rows[i];
    packed.rows[i] = {.slot = rows.slot,
                      .from_device = rows.source == RowSource::kDevice,
                      .first_position = rows.first_position,
                      .num_rows = rows.num_rows,
                      .first_token = rows.first_token,
                      .end_position = rows.end_position,
                      .first_block = rows.first_block,
                      .num_drafts = static_cast<uint16_t>(rows.num_drafts),
                      .draws = rows.sample >= 0};
  }
  std::copy(input.token_ids.begin(), input.token_ids.end(), packed.token_ids);
  std::copy(input.block_tables.begin(), input.block_tables.end(),
            packed.block_tables);
  return CudaInputBytes(num_sequences, num_tokens, num_blocks);
}

void CudaStepExecutor::TakeReport(const Launch& launch,
                                  const CudaReport& report) const {
  const size_t stride = device_options_.max_sequences;
  StepOutput* output = launch.output;
  output->num_rows = report.header->num_rows;
  // Of the device's clock: only differences mean anything.
  output->device_start =
      absl::FromUnixNanos(static_cast<int64_t>(report.header->start));
  output->device_end =
      absl::FromUnixNanos(static_cast<int64_t>(report.header->end));
  for (size_t i = 0; i < launch.input->rows.size(); ++i) {
    const int32_t sample = launch.input->rows[i].sample;
    if (sample < 0) continue;
    const uint32_t counts = report.counts[i];
    SampleOutput& out = output->samples[sample];
    out.sampleable = true;
    out.num_tokens = counts & 0xff;
    out.num_verified = counts >> 8 & 0xff;
    out.num_drafts = counts >> 16;
    for (uint32_t j = 0; j < out.num_tokens; ++j) {
      out.tokens[j] = {report.token_ids[j * stride + i],
                       report.logprobs[j * stride + i]};
    }
    for (uint32_t j = 0; j < out.num_drafts; ++j) {
      out.draft_probability[j] = report.draft_probability[j * stride + i];
    }
  }
}

CudaReport CudaStepExecutor::Report(uint64_t step) const {
  return ViewCudaReport(memory_.reports[step % device_options_.ring_size],
                        device_options_.max_sequences,
                        device_options_.num_drafts);
}

bool CudaStepExecutor::IsDone(uint64_t step) const {
  const std::atomic_ref<uint64_t> reported(Report(step).header->step);
  return reported.load(std::memory_order_acquire) >= step;
}

}  // namespace baton
