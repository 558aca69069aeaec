// How fast one engine turns prompts into tokens: the loop, the model and the
// sampler in one process, without any server. Prints a JSON line for each batch
// size.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "engine/llm_engine.h"
#include "engine/model/deepseek_v3_runner.h"
#include "engine/model/numerics.h"
#include "kernels/cpu_context.h"
#include "kernels/thread_pool.h"
#include "nlohmann/json.hpp"
#include "server/edge/config.h"
#include "tests/fakes/heap_kv_pool.h"
#include "tests/fakes/recording_token_sink.h"

namespace baton {
namespace {

constexpr uint32_t kFirstPlainToken = 16;  // Below are special tokens.

struct Options {
  std::string model;
  std::vector<std::string> batch = {"1", "8", "32"};
  uint32_t prompt_tokens = 128;
  uint32_t max_tokens = 128;
  uint32_t threads = 1;
  bool pin_threads = true;
  WeightStorage weights = WeightStorage::kF32;
  CacheDtype cache = CacheDtype::kF32;
  Numerics numerics = Numerics::kExact;
  double temperature = 0;
  uint64_t seed = 0;
  std::string prompts;
  std::string logits_out;
  bool tokens = false;
};

using Prompts = std::vector<std::vector<uint32_t>>;

void AddFlags(Flags& flags, Options* o) {
  flags.Add(&o->model,
            {.name = "model", .help = "The model's folder.", .required = true});
  flags.Add(&o->batch, {.name = "batch", .help = "Batch sizes, one by one."});
  flags.Add(&o->prompt_tokens, {.name = "prompt_tokens",
                                .help = "Length of the random prompts.",
                                .min = 1,
                                .max = 100'000});
  flags.Add(&o->max_tokens, {.name = "max_tokens",
                             .help = "Output of each sequence.",
                             .min = 4,
                             .max = 100'000});
  flags.Add(&o->threads, {.name = "threads",
                          .help = "Threads of the kernels.",
                          .min = 1,
                          .max = 256});
  flags.Add(&o->pin_threads,
            {.name = "pin_threads", .help = "Each to a CPU of its own."});
  flags.AddChoice(
      &o->weights,
      {{"f32", WeightStorage::kF32}, {"bf16", WeightStorage::kBf16}},
      {.name = "weights", .help = "How weights are held."});
  flags.AddChoice(&o->cache,
                  {{"f32", CacheDtype::kF32}, {"bf16", CacheDtype::kBf16}},
                  {.name = "cache", .help = "Type of the KV cache."});
  flags.AddChoice(&o->numerics,
                  {{"exact", Numerics::kExact}, {"fast", Numerics::kFast}},
                  {.name = "numerics", .help = "As batond's."});
  flags.Add(&o->temperature, {.name = "temperature", .help = "0 is greedy."});
  flags.Add(&o->seed, {.name = "seed", .help = "Of prompts and sampling."});
  flags.Add(&o->prompts,
            {.name = "prompts",
             .help = "JSON file with a list of lists of token ids, one for "
                     "each sequence, instead of random ones."});
  flags.Add(&o->logits_out,
            {.name = "logits_out",
             .help = "File for the logits after the first prompt, as raw "
                     "float32."});
  flags.Add(&o->tokens,
            {.name = "tokens", .help = "Put the tokens into the line."});
}

absl::StatusOr<std::vector<uint32_t>> BatchSizes(const Options& options) {
  std::vector<uint32_t> sizes;
  for (const std::string& text : options.batch) {
    uint32_t size = 0;
    if (!absl::SimpleAtoi(text, &size) || size == 0 || size > 4096) {
      return FieldError("batch", "\"" + text + "\" is not 1 to 4096");
    }
    sizes.push_back(size);
  }
  if (sizes.empty()) return FieldError("batch", "names no size");
  return sizes;
}

absl::StatusOr<Prompts> MakePrompts(const Options& options, uint32_t count,
                                    uint32_t vocab_size) {
  if (!options.prompts.empty()) {
    std::ifstream file(options.prompts);
    const auto json = nlohmann::json::parse(file, nullptr, false);
    if (!json.is_array() || json.size() < count) {
      return FieldError("prompts", "no list with enough lists of ids");
    }
    return json.get<Prompts>();
  }
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<uint32_t> draw(kFirstPlainToken,
                                               vocab_size - 1);
  Prompts prompts(count, std::vector<uint32_t>(options.prompt_tokens));
  for (auto& prompt : prompts) {
    for (uint32_t& id : prompt) id = draw(random);
  }
  return prompts;
}

// One batch, from its submission to its last token.
struct Run {
  absl::Duration prompt_time;  // To the end of the last prefill step.
  uint32_t prompt_tokens = 0;
  // Between the ends of the first and the last decode step of the full batch:
  // everything is in it, scheduling, forward, sampling and handing out.
  absl::Duration decode_time;
  uint32_t decode_steps = 0;
  std::vector<absl::Duration> step_times;  // Between ends; sorted.
  Prompts tokens;
};

using Steps = std::vector<std::pair<absl::Time, StepStats>>;

Run Summarise(absl::Time start, const Steps& steps, uint32_t batch) {
  Run run;
  std::vector<absl::Time> ends;  // Of decode steps of the full batch.
  for (const auto& [end, stats] : steps) {
    if (stats.prefill) {
      run.prompt_time = end - start;
      run.prompt_tokens += stats.rows;
    } else if (stats.rows == batch) {
      ends.push_back(end);
    }
  }
  CHECK_GE(ends.size(), 2u) << "no decode steps of the full batch";
  run.decode_steps = ends.size() - 1;
  run.decode_time = ends.back() - ends.front();
  for (size_t i = 1; i < ends.size(); ++i) {
    run.step_times.push_back(ends[i] - ends[i - 1]);
  }
  std::sort(run.step_times.begin(), run.step_times.end());
  return run;
}

std::vector<GenerationRequest> MakeRequests(const Options& options,
                                            const Prompts& prompts,
                                            uint32_t batch) {
  std::vector<GenerationRequest> requests(batch);
  for (uint32_t i = 0; i < batch; ++i) {
    GenerationRequest& request = requests[i];
    request.id = {.router_nonce = 1, .counter = i};
    request.token_ids = prompts[i];
    request.original_prompt_tokens = prompts[i].size();
    request.sampling.temperature = static_cast<float>(options.temperature);
    request.sampling.seed = options.seed + i;
    request.max_tokens = options.max_tokens;
  }
  return requests;
}

// Turns the loop on this one thread until all have ended. The engine's observer
// adds to `steps`.
Run RunBatch(LLMEngine* engine, CpuDeviceStream* stream,
             const std::vector<GenerationRequest>& requests, Steps* steps) {
  const MonotonicClock clock;
  std::vector<RecordingTokenSink> sinks(requests.size());
  steps->clear();
  const absl::Time start = clock.Now();
  for (size_t i = 0; i < requests.size(); ++i) {
    CHECK_OK(engine->Submit(requests[i], &sinks[i]));
  }
  do {
    engine->Advance();
    stream->Poll();
  } while (!engine->idle());
  Run run = Summarise(start, *steps, static_cast<uint32_t>(requests.size()));
  for (const RecordingTokenSink& sink : sinks) {
    run.tokens.push_back(sink.tokens);
  }
  return run;
}

void WriteLogits(const std::string& path, DeepSeekV3Runner* model,
                 const std::vector<uint32_t>& prompt, uint32_t max_rows) {
  std::vector<uint32_t> block_table(prompt.size() / CacheSpec::kBlockTokens +
                                    1);
  for (size_t i = 0; i < block_table.size(); ++i) block_table[i] = i;
  std::vector<float> logits(model->info().vocab_size);
  for (size_t start = 0; start < prompt.size(); start += max_rows) {
    const size_t rows = std::min<size_t>(max_rows, prompt.size() - start);
    std::vector<int32_t> positions(rows);
    for (size_t i = 0; i < rows; ++i) positions[i] = start + i;
    const SequenceRows sequence = {
        .first_row = 0,
        .num_rows = static_cast<int32_t>(rows),
        .block_table = block_table.data(),
        .prompt_tokens = static_cast<int32_t>(prompt.size())};
    const auto last_row = static_cast<int32_t>(rows - 1);
    model->Forward(
        {.token_ids = {prompt.data() + start, rows},
         .positions = positions,
         .sequences = {&sequence, 1},
         .logits_rows = {&last_row, 1}},
        {.logits = Dense(logits.data(), 1, static_cast<int>(logits.size()))});
  }
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(logits.data()),
             static_cast<std::streamsize>(logits.size() * sizeof(float)));
}

nlohmann::json RunJson(const Options& options, uint32_t batch, const Run& run) {
  nlohmann::json json = {
      {"batch", batch},
      {"threads", options.threads},
      {"weights", options.weights == WeightStorage::kF32 ? "f32" : "bf16"},
      {"cache", options.cache == CacheDtype::kF32 ? "f32" : "bf16"},
      {"numerics", NumericsName(options.numerics)},
      {"prefill_tokens_per_second",
       run.prompt_tokens / absl::ToDoubleSeconds(run.prompt_time)},
      {"decode_tokens_per_second",
       batch * run.decode_steps / absl::ToDoubleSeconds(run.decode_time)},
      {"decode_step_us_p50",
       absl::ToDoubleMicroseconds(run.step_times[run.step_times.size() / 2])}};
  if (options.tokens) json["tokens"] = run.tokens;
  return json;
}

absl::Status RunBenchmark(const Options& options) {
  ASSIGN_OR_RETURN(const std::vector<uint32_t> sizes, BatchSizes(options));
  const uint32_t largest = *std::max_element(sizes.begin(), sizes.end());
  EngineOptions engine_options;
  engine_options.max_running_requests = largest;
  // All prompts first: then every decode step has the full batch.
  engine_options.decode_steps_per_prefill = 0;

  ThreadPool threads({.num_threads = static_cast<int>(options.threads),
                      .pin_threads = options.pin_threads});
  const CpuContext cpu = {.isa = SupportedVectorIsas().back(),
                          .threads = &threads};
  ASSIGN_OR_RETURN(const std::unique_ptr<DeepSeekV3Runner> model,
                   DeepSeekV3Runner::Load(
                       {.folder = options.model,
                        .weights = options.weights,
                        .cache_dtype = options.cache,
                        .numerics = options.numerics,
                        .max_rows = static_cast<int>(engine_options.max_rows()),
                        .max_logits_rows =
                            static_cast<int>(engine_options.max_logits_rows())},
                       cpu));
  ASSIGN_OR_RETURN(const Prompts prompts,
                   MakePrompts(options, largest, model->info().vocab_size));
  size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  const size_t blocks =
      (longest + options.max_tokens) / CacheSpec::kBlockTokens + 2;
  HeapKvPool pool(largest * blocks, model->info().cache.block_bytes());
  model->BindKvPool(pool.get());
  if (!options.logits_out.empty()) {
    WriteLogits(options.logits_out, model.get(), prompts[0],
                engine_options.max_rows());
  }

  const MonotonicClock clock;
  CpuDeviceStream stream;
  Steps steps;
  CpuStepExecutor executor(
      engine_options,
      {.model = model.get(), .stream = &stream, .clock = &clock, .cpu = cpu});
  LLMEngine engine(engine_options, {.executor = &executor,
                                    .pool = pool.get(),
                                    .clock = &clock,
                                    .observer = [&](const StepStats& stats) {
                                      steps.emplace_back(clock.Now(), stats);
                                    }});
  for (const uint32_t batch : sizes) {
    const Run run = RunBatch(&engine, &stream,
                             MakeRequests(options, prompts, batch), &steps);
    std::cout << RunJson(options, batch, run).dump() << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::Options options;
  baton::Flags flags("engine_benchmark",
                     "Tokens per second of one engine, without any server.");
  AddFlags(flags, &options);
  if (const auto code = flags.ParseOrExitCode(argc, argv, environ, [&] {
        return baton::BatchSizes(options).status();
      })) {
    return *code;
  }
  const absl::Status status = baton::RunBenchmark(options);
  if (!status.ok()) {
    std::cerr << "engine_benchmark: " << std::string(status.message()) << "\n";
    return 1;
  }
  return 0;
}
