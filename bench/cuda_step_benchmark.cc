// How long a GPU waits between steps: the real engine over CudaStepExecutor and
// stand-in kernels of set duration, while requests come and end in every step.
// Prints a table, a line for each combination; exits with 1 when a token is not
// the CPU's.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "bench/statistics.h"
#include "engine/cuda_step_executor.h"
#include "engine/llm_engine.h"
#include "kernels/cuda/cuda_library.h"
#include "server/edge/config.h"
#include "tests/fakes/heap_kv_pool.h"
#include "tests/fakes/stand_in_load.h"

namespace baton {
namespace {

struct Options {
  std::string library;
  std::vector<std::string> sequences = {"32", "256", "1024"};
  std::vector<std::string> step_us = {"1000", "5000"};
  std::vector<std::string> depth = {"1", "2", "3"};
  uint32_t drafts = 0;
  uint32_t steps = 2000;
  uint32_t warm_up_steps = 200;
  uint32_t prompt_tokens = 32;
  uint32_t max_tokens = 16;
  uint32_t checked = 2048;
};

struct Case {
  uint32_t sequences = 0;
  uint32_t step_us = 0;
  uint32_t depth = 0;
};

void AddFlags(Flags& flags, Options* o) {
  flags.Add(&o->library,
            {.name = "library", .help = "Default: near the program."});
  flags.Add(&o->sequences,
            {.name = "sequences", .help = "Running at once, one by one."});
  flags.Add(&o->step_us, {.name = "step_us",
                          .help = "Microseconds of a forward, one by one."});
  flags.Add(&o->depth, {.name = "depth", .help = "Steps in flight at most."});
  flags.Add(&o->drafts, {.name = "drafts",
                         .help = "Drafts a sequence and step.",
                         .max = kMaxDraftTokens});
  flags.Add(&o->steps,
            {.name = "steps", .help = "Measured.", .min = 10, .max = 100'000});
  flags.Add(&o->warm_up_steps,
            {.name = "warm_up_steps", .help = "Before.", .max = 100'000});
  flags.Add(&o->prompt_tokens, {.name = "prompt_tokens",
                                .help = "Of a request at most.",
                                .min = 1,
                                .max = 256});
  flags.Add(&o->max_tokens,
            {.name = "max_tokens",
             .help = "Of a request on average; the fewer, the more requests "
                     "come and end in a step.",
             .min = 1,
             .max = 1000});
  flags.Add(&o->checked,
            {.name = "checked",
             .help = "Requests whose tokens are compared with the CPU's.",
             .max = 100'000});
}

absl::StatusOr<std::vector<uint32_t>> Numbers(
    const char* flag, const std::vector<std::string>& texts, uint32_t max) {
  std::vector<uint32_t> numbers;
  for (const std::string& text : texts) {
    uint32_t number = 0;
    if (!absl::SimpleAtoi(text, &number) || number == 0 || number > max) {
      return FieldError(flag, absl::StrCat("\"", text, "\" is not 1 to ", max));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<Case>> Cases(const Options& options) {
  ASSIGN_OR_RETURN(const auto sequences,
                   Numbers("sequences", options.sequences, 4096));
  ASSIGN_OR_RETURN(const auto step_us,
                   Numbers("step_us", options.step_us, 1'000'000));
  ASSIGN_OR_RETURN(const auto depths,
                   Numbers("depth", options.depth, kMaxPipelineDepth));
  std::vector<Case> cases;
  for (uint32_t step : step_us) {
    for (uint32_t batch : sequences) {
      for (uint32_t depth : depths) cases.push_back({batch, step, depth});
    }
  }
  return cases;
}

// What the engine's observer saw of the measured steps.
struct Measured {
  uint32_t steps_seen = 0;
  std::vector<double> gap_us;
  std::vector<double> device_us;
  // CPU time of the engine's turns, all that led to a step's commit.
  std::vector<double> engine_us;
  double tokens = 0;
  double requests = 0;  // That came; as many ended.

  bool complete(uint32_t steps) const { return gap_us.size() == steps; }
};

double Sum(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum;
}

void PrintHeader() {
  std::printf(
      "| step ms | B | depth | gap p50 us | gap p99 us | idle | step p50 us | "
      "tokens/s | come and end a step | engine CPU us p50 | p99 |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n");
}

void PrintRow(const Case& c, Measured& m) {
  const double gaps = Sum(m.gap_us);
  const double time = gaps + Sum(m.device_us);
  std::printf(
      "| %g | %u | %u | %.2f | %.2f | %.2f %% | %.1f | %.0f | %.1f | %.1f | "
      "%.1f |\n",
      c.step_us / 1000.0, c.sequences, c.depth, Quantile(m.gap_us, 0.5),
      Quantile(m.gap_us, 0.99), 100 * gaps / time, Quantile(m.device_us, 0.5),
      m.tokens / time * 1e6, m.requests / m.gap_us.size(),
      Quantile(m.engine_us, 0.5), Quantile(m.engine_us, 0.99));
  std::fflush(stdout);
}

StandInLoad::Options LoadOptions(const Options& options) {
  return {.prompt_tokens = options.prompt_tokens,
          .max_tokens = options.max_tokens};
}

CudaStepExecutor::Options ExecutorOptions(const Options& options,
                                          const Case& c) {
  const uint32_t context = options.prompt_tokens + 2 * options.max_tokens;
  // Each with a block to spare for the steps in flight.
  const uint32_t blocks = context / CacheSpec::kBlockTokens + 2;
  return {.engine = {.max_running_requests = c.sequences,
                     .max_waiting_requests = c.sequences,
                     .max_batched_tokens = 8192,
                     .pipeline_depth = c.depth,
                     .num_draft_tokens = options.drafts},
          .max_context_tokens = context,
          .num_blocks = 2 * c.sequences * blocks,
          .step_time = absl::Microseconds(c.step_us)};
}

absl::Status RunCase(const Options& options, const Case& c, const CudaApi* api,
                     const std::vector<std::vector<uint32_t>>& expected) {
  const auto executor_options = ExecutorOptions(options, c);
  ASSIGN_OR_RETURN(const std::unique_ptr<CudaStepExecutor> executor,
                   CudaStepExecutor::Create(executor_options, api));
  HeapKvPool pool(executor_options.num_blocks,
                  executor->info().cache.block_bytes());
  const MonotonicClock clock;
  StandInLoad load(LoadOptions(options));
  Measured measured;
  const auto observe = [&](const StepStats& stats) {
    if (measured.steps_seen++ < options.warm_up_steps) {
      measured.requests = -static_cast<double>(load.num_submitted());
      return;
    }
    if (measured.complete(options.steps)) return;
    measured.gap_us.push_back(absl::ToDoubleMicroseconds(stats.device_idle));
    measured.device_us.push_back(absl::ToDoubleMicroseconds(stats.device_time));
    measured.tokens += stats.tokens;
    if (!measured.complete(options.steps)) return;
    measured.requests += load.num_submitted();
    load.Stop();
  };
  LLMEngine engine(executor_options.engine, {.executor = executor.get(),
                                             .pool = pool.get(),
                                             .clock = &clock,
                                             .observer = observe});
  load.Start(&engine, c.sequences, ~uint64_t{0});
  double turns_us = 0;
  while (!engine.idle()) {
    const size_t steps_before = measured.gap_us.size();
    const absl::Time start = clock.Now();
    if (engine.Advance()) {
      turns_us += absl::ToDoubleMicroseconds(clock.Now() - start);
    }
    executor->Poll();
    const bool committed = measured.gap_us.size() > steps_before;
    if (committed) measured.engine_us.push_back(turns_us);
    if (committed || measured.gap_us.empty()) turns_us = 0;
  }
  PrintRow(c, measured);
  if (const uint64_t wrong = load.CountOthers(expected); wrong > 0) {
    return absl::DataLossError(
        absl::StrCat("the tokens of ", wrong, " requests are not the CPU's"));
  }
  return absl::OkStatus();
}

absl::Status RunBenchmark(const Options& options) {
  ASSIGN_OR_RETURN(const std::vector<Case> cases, Cases(options));
  ASSIGN_OR_RETURN(const CudaApi* api, options.library.empty()
                                           ? OpenCudaLibraryNearProgram()
                                           : OpenCudaLibrary(options.library));
  ASSIGN_OR_RETURN(const std::string device, DescribeCudaDevices(*api));
  std::printf("device %s\n\n", device.c_str());
  const auto expected =
      StandInTokensOnCpu(LoadOptions(options), options.checked);
  PrintHeader();
  for (const Case& c : cases) {
    RETURN_IF_ERROR(RunCase(options, c, api, expected));
  }
  std::printf("\ntokens of up to %u requests a line are the CPU's\n",
              options.checked);
  return absl::OkStatus();
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::Options options;
  baton::Flags flags("cuda_step_benchmark",
                     "Gaps between steps on a GPU, with stand-in kernels.");
  AddFlags(flags, &options);
  if (const auto code = flags.ParseOrExitCode(argc, argv, environ, [&] {
        return baton::Cases(options).status();
      })) {
    return *code;
  }
  const absl::Status status = baton::RunBenchmark(options);
  if (!status.ok()) {
    std::cerr << "cuda_step_benchmark: " << std::string(status.message())
              << "\n";
    return 1;
  }
  return 0;
}
