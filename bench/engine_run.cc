#include "bench/engine_run.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/cache_spec.h"
#include "server/decode_curve.h"
#include "tests/fakes/recording_token_sink.h"

namespace baton {
namespace {

// Its end wakes the loop; this bounds what a lost wake-up costs.
constexpr absl::Duration kIdleWait = absl::Milliseconds(100);

absl::Duration ProcessCpuTime() {
  timespec now;
  CHECK_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now), 0);
  return absl::DurationFromTimespec(now);
}

EngineOptions MakeEngineOptions(uint32_t max_batch,
                                const EngineVariant& variant) {
  EngineOptions options;
  options.max_running_requests = max_batch;
  // All prompts first: then every decode step has the full batch.
  options.decode_steps_per_prefill = 0;
  options.prefix_cache = false;  // The same prompts come again.
  options.pipeline_depth = variant.pipeline_depth;
  options.num_draft_tokens = variant.num_draft_tokens;
  return options;
}

void AddStep(const StepStats& step, BatchRun* run) {
  ++run->decode_steps;
  run->decode_tokens += step.tokens;
  run->device_idle += step.device_idle;
  run->schedule_time += step.schedule_time;
  run->commit_time += step.commit_time;
  run->rows += step.rows;
  run->wasted_rows += step.wasted_rows;
  run->sequence_steps += step.sequences;
  run->drafts_made += step.drafts_made;
  for (uint32_t i = 0; i < kMaxDraftTokens; ++i) {
    run->drafts_verified[i] += step.drafts_verified[i];
    run->drafts_accepted[i] += step.drafts_accepted[i];
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchEngine>> BenchEngine::Create(
    const BenchEngineOptions& options, const EngineVariant& variant) {
  std::unique_ptr<BenchEngine> engine(
      new BenchEngine(options, MakeEngineOptions(options.max_batch, variant)));
  RETURN_IF_ERROR(engine->Start(options, variant.adaptive_verification));
  return engine;
}

BenchEngine::BenchEngine(const BenchEngineOptions& options,
                         EngineOptions engine_options)
    : engine_options_(std::move(engine_options)),
      threads_(
          {.num_threads = options.threads, .pin_threads = options.pin_threads}),
      cpu_{.isa = SupportedVectorIsas().back(), .threads = &threads_} {}

absl::Status BenchEngine::Start(const BenchEngineOptions& options,
                                bool adaptive) {
  ASSIGN_OR_RETURN(
      runner_, DeepSeekV3Runner::Load(
                   {.folder = options.model,
                    .weights = options.weights,
                    .cache_dtype = options.cache,
                    .numerics = options.numerics,
                    .max_rows = static_cast<int>(engine_options_.max_rows()),
                    .max_logits_rows =
                        static_cast<int>(engine_options_.max_logits_rows()),
                    .drafter = engine_options_.num_draft_tokens > 0},
                   cpu_));
  const uint32_t blocks = CacheSpec::BlocksFor(options.max_sequence_tokens) + 1;
  pool_ = std::make_unique<HeapKvPool>(options.max_batch * blocks,
                                       model().cache.block_bytes());
  runner_->BindKvPool(pool_->get());
  if (adaptive && engine_options_.num_draft_tokens > 0) {
    engine_options_.step_curve =
        MeasureDecodeCurve(runner_.get(), engine_options_, clock_);
  }
  executor_ = std::make_unique<CpuStepExecutor>(
      engine_options_, CpuStepExecutor::Device{.model = runner_.get(),
                                               .pool = pool_->get(),
                                               .stream = &stream_,
                                               .clock = &clock_,
                                               .cpu = cpu_});
  engine_ = std::make_unique<LLMEngine>(
      engine_options_,
      EngineEnvironment{
          .executor = executor_.get(),
          .pool = pool_->get(),
          .clock = &clock_,
          .observer = [this](const StepStats& stats) {
            steps_.push_back({clock_.Now(), ProcessCpuTime(), stats});
          }});
  if (engine_options_.pipeline_depth > 1) {
    device_ = std::make_unique<DeviceThread>(&stream_);
  }
  return absl::OkStatus();
}

BatchRun BenchEngine::Run(const std::vector<GenerationRequest>& requests) {
  std::vector<RecordingTokenSink> sinks(requests.size());
  steps_.clear();
  prctl(PR_SET_TIMERSLACK, 1000);  // As server/engine_loop.cc.
  const absl::Time start = clock_.Now();
  for (size_t i = 0; i < requests.size(); ++i) {
    CHECK_OK(engine_->Submit(requests[i], &sinks[i]));
  }
  do {
    const bool advanced = engine_->Advance();
    if (device_ == nullptr) {
      stream_.Poll();
    } else if (!advanced) {
      engine_->WaitForWork(kIdleWait);
    }
  } while (!engine_->idle());
  BatchRun run = Summarise(start, static_cast<uint32_t>(requests.size()));
  for (const RecordingTokenSink& sink : sinks) {
    run.tokens.push_back(sink.tokens);
  }
  return run;
}

BatchRun BenchEngine::Summarise(absl::Time start, uint32_t batch) const {
  BatchRun run;
  const Step* first = nullptr;  // Decode steps of the full batch.
  const Step* last = nullptr;
  for (const Step& step : steps_) {
    if (step.stats.prefill) {
      run.prompt_time = step.end - start;
      run.prompt_tokens += step.stats.rows;
    } else if (step.stats.sequences == batch) {
      if (first == nullptr) {
        first = &step;
      } else {
        AddStep(step.stats, &run);
        run.step_times.push_back(step.end - last->end);
      }
      last = &step;
    }
  }
  CHECK_GT(run.decode_steps, 0u) << "no decode steps of the full batch";
  run.decode_time = last->end - first->end;
  run.cpu_time = last->cpu_time - first->cpu_time;
  std::sort(run.step_times.begin(), run.step_times.end());
  return run;
}

std::vector<float> BenchEngine::LogitsAfter(
    const std::vector<uint32_t>& prompt) {
  const size_t max_rows = engine_options_.max_rows();
  std::vector<uint32_t> block_table(CacheSpec::BlocksFor(prompt.size()));
  for (uint32_t i = 0; i < block_table.size(); ++i) block_table[i] = i;
  std::vector<float> logits(model().vocab_size);
  for (size_t start = 0; start < prompt.size(); start += max_rows) {
    const size_t rows = std::min(max_rows, prompt.size() - start);
    std::vector<int32_t> positions(rows);
    for (size_t i = 0; i < rows; ++i) {
      positions[i] = static_cast<int32_t>(start + i);
    }
    const SequenceRows sequence = {.first_row = 0,
                                   .num_rows = static_cast<int32_t>(rows),
                                   .block_table = block_table.data()};
    const auto last_row = static_cast<int32_t>(rows - 1);
    runner_->Forward(
        {.token_ids = {prompt.data() + start, rows},
         .positions = positions,
         .sequences = {&sequence, 1},
         .logits_rows = {&last_row, 1}},
        {.logits = Dense(logits.data(), 1, static_cast<int>(logits.size()))});
  }
  return logits;
}

}  // namespace baton
