#include "tests/fakes/fake_cuda_device.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "base/logging.h"

namespace baton {
namespace {

FakeCudaDevice& Fake(void* device) {
  return *static_cast<FakeCudaDevice*>(device);
}

}  // namespace

struct FakeCudaDevice::Memory {
  std::array<std::vector<uint64_t>, kMaxCudaRing> inputs;  // The host's.
  std::array<std::vector<uint64_t>, kMaxCudaRing> reports;
  std::array<size_t, kMaxCudaRing> input_bytes = {};
  std::vector<uint64_t> input;  // The device's.
  std::vector<CudaSlot> slots;
  std::vector<CudaCorrected> corrected;
  std::vector<uint64_t> hidden;
  std::vector<uint64_t> cache;
  StandInStep step = {};
  std::atomic<uint64_t> launched{0};
  std::atomic<uint64_t> done{0};
};

FakeCudaDevice::FakeCudaDevice() {
  api_ = {
      .version = kCudaApiVersion,
      .context = this,
      .describe =
          [](void*, char* line, size_t size) {
            return std::snprintf(line, size, "fake") > 0 ? 1 : 0;
          },
      .create =
          [](void* context, const CudaDeviceOptions* options,
             CudaDeviceMemory* memory, char* error, size_t size) {
            FakeCudaDevice& fake = Fake(context);
            std::snprintf(error, size, "%s", fake.failure_.c_str());
            return fake.failure_.empty() ? fake.Create(*options, memory)
                                         : nullptr;
          },
      .destroy = [](void* device) { Fake(device).memory_.reset(); },
      .copy_input =
          [](void* device, uint64_t step, size_t bytes) {
            Fake(device).CopyInput(step, bytes);
            return 0;
          },
      .launch =
          [](void* device, uint64_t step, uint32_t num_sequences) {
            Fake(device).Launch(step, num_sequences);
            return 0;
          },
      .check =
          [](void* device) { return Fake(device).failure_.empty() ? 0 : 1; },
      .error = [](void* device) { return Fake(device).failure_.c_str(); },
  };
}

FakeCudaDevice::~FakeCudaDevice() = default;

void* FakeCudaDevice::Create(const CudaDeviceOptions& options,
                             CudaDeviceMemory* memory) {
  CHECK(memory_ == nullptr);
  memory_ = std::make_unique<Memory>();
  const size_t sequences = options.max_sequences;
  const size_t input_words =
      CudaInputBytes(sequences, options.max_tokens, options.max_blocks) / 8 + 1;
  for (uint32_t i = 0; i < options.ring_size; ++i) {
    memory_->inputs[i].resize(input_words);
    memory_->reports[i].resize(
        CudaReportBytes(sequences, options.num_drafts) / 8 + 1);
    memory->inputs[i] = memory_->inputs[i].data();
    memory->reports[i] = memory_->reports[i].data();
  }
  memory_->input.resize(input_words);
  memory_->slots.resize(sequences);
  memory_->corrected.resize(sequences);
  memory_->hidden.resize(sequences * (1 + options.num_drafts));
  memory_->cache.resize(size_t{options.model.num_blocks} * kStandInBlockTokens);
  memory_->step.options = options;
  memory_->step.input = memory_->input.data();
  memory_->step.slots = memory_->slots.data();
  memory_->step.corrected = memory_->corrected.data();
  memory_->step.hidden = memory_->hidden.data();
  memory_->step.cache = memory_->cache.data();
  return this;
}

void FakeCudaDevice::CopyInput(uint64_t step, size_t bytes) {
  const uint32_t ring = memory_->step.options.ring_size;
  CHECK_EQ(step, memory_->launched.load() + 1);
  CHECK_LE(step, memory_->done.load() + ring);
  memory_->input_bytes[step % ring] = bytes;
}

void FakeCudaDevice::Launch(uint64_t step, uint32_t num_sequences) {
  const uint32_t place = step % memory_->step.options.ring_size;
  CHECK_EQ(
      ViewCudaInput(memory_->inputs[place].data(), 0, 0).header->num_sequences,
      num_sequences);
  memory_->launched.store(step);
}

bool FakeCudaDevice::RunStep() {
  const uint64_t number = memory_->done.load() + 1;
  if (number > memory_->launched.load()) return false;
  StandInStep& step = memory_->step;
  const size_t place = number % step.options.ring_size;
  std::memcpy(memory_->input.data(), memory_->inputs[place].data(),
              memory_->input_bytes[place]);
  step.report = memory_->reports[place].data();
  const CudaStepInput input = InputOf(step);
  CHECK_EQ(input.header->step, number);
  CudaReportHeader* report = ReportOf(step).header;
  report->start = nanoseconds_;
  report->num_rows = 0;
  const uint32_t num_sequences = input.header->num_sequences;
  for (uint32_t i = 0; i < num_sequences; ++i) {
    const CudaRows& rows = input.rows[i];
    step.corrected[i] = CorrectLength(rows, step.slots[rows.slot]);
    report->num_rows += step.corrected[i].num_rows;
  }
  for (uint32_t i = 0; i < num_sequences; ++i) RunRows(step, i);
  for (uint32_t i = 0; i < num_sequences; ++i) SampleSequence(step, i);
  report->end = nanoseconds_ + step.options.model.step_nanoseconds;
  memory_->done.store(number);
  std::atomic_ref<uint64_t>(report->step)
      .store(number, std::memory_order_release);
  return true;
}

}  // namespace baton
