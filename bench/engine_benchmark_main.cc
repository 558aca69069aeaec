// How fast one engine turns prompts into tokens: the loop, the model and the
// sampler in one process, without any server. Prints a JSON line for each batch
// size and variant.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "bench/engine_run.h"
#include "engine/model/numerics.h"
#include "nlohmann/json.hpp"
#include "server/edge/config.h"

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
  uint32_t pipeline_depth = 1;
  uint32_t num_draft_tokens = 0;
  bool adaptive_verification = true;
  bool compare = false;
  uint32_t rounds = 1;
};

using Prompts = std::vector<std::vector<uint32_t>>;

void AddEngineFlags(Flags& flags, Options* o) {
  flags.Group("Engine");
  flags.Add(&o->pipeline_depth,
            {.name = "pipeline_depth",
             .help = "Steps in flight; above 1 the device has a thread.",
             .min = 1,
             .max = kMaxPipelineDepth});
  flags.Add(&o->num_draft_tokens, {.name = "num_draft_tokens",
                                   .help = "Drafts a sequence and step.",
                                   .max = kMaxDraftTokens});
  flags.Add(&o->adaptive_verification,
            {.name = "adaptive_verification",
             .help = "Verify the drafts that pay, by a curve measured first; "
                     "else all."});
  flags.Add(&o->compare,
            {.name = "compare",
             .help = "In turns: depth 1 and --pipeline_depth, without drafts "
                     "and with --num_draft_tokens."});
  flags.Add(&o->rounds, {.name = "rounds",
                         .help = "Of each batch size; the fastest one counts.",
                         .min = 1,
                         .max = 1000});
}

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
                  {{"exact", Numerics::kExact},
                   {"fast", Numerics::kFast},
                   {"fast_bf16", Numerics::kFastBf16}},
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
  AddEngineFlags(flags, o);
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

absl::StatusOr<Prompts> ReadPrompts(const std::string& path, uint32_t count) {
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_array() || json.size() < count) {
    return FieldError("prompts", "no list with enough lists of ids");
  }
  return json.get<Prompts>();
}

Prompts RandomPrompts(const Options& options, uint32_t count,
                      uint32_t vocab_size) {
  std::mt19937_64 random(options.seed);
  std::uniform_int_distribution<uint32_t> draw(kFirstPlainToken,
                                               vocab_size - 1);
  Prompts prompts(count, std::vector<uint32_t>(options.prompt_tokens));
  for (auto& prompt : prompts) {
    for (uint32_t& id : prompt) id = draw(random);
  }
  return prompts;
}

void WriteFloats(const std::string& path, const std::vector<float>& values) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
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

// By the place of the draft in its chain, without the places never verified.
nlohmann::json ByPlace(const std::array<uint32_t, kMaxDraftTokens>& counts) {
  size_t size = counts.size();
  while (size > 0 && counts[size - 1] == 0) --size;
  return std::vector<uint32_t>(counts.begin(), counts.begin() + size);
}

double TokensPerSecond(const BatchRun& run) {
  return run.decode_tokens / absl::ToDoubleSeconds(run.decode_time);
}

double CpuMicrosecondsPerToken(const BatchRun& run) {
  return absl::ToDoubleMicroseconds(run.cpu_time) / run.decode_tokens;
}

nlohmann::json RunJson(const Options& options, const EngineVariant& variant,
                       uint32_t batch, const BatchRun& run) {
  const double steps = run.decode_steps;
  const absl::Duration median_step = run.step_times[run.step_times.size() / 2];
  nlohmann::json json = {
      {"variant", variant.name},
      {"batch", batch},
      {"threads", options.threads},
      {"weights", options.weights == WeightStorage::kF32 ? "f32" : "bf16"},
      {"cache", options.cache == CacheDtype::kF32 ? "f32" : "bf16"},
      {"pipeline_depth", variant.pipeline_depth},
      {"num_draft_tokens", variant.num_draft_tokens},
      {"numerics", NumericsName(options.numerics)},
      {"prefill_tokens_per_second",
       run.prompt_tokens / absl::ToDoubleSeconds(run.prompt_time)},
      {"decode_tokens_per_second", TokensPerSecond(run)},
      {"decode_step_us_p50", absl::ToDoubleMicroseconds(median_step)},
      // Were all steps as long as that one: what other load takes is not in it.
      {"decode_tokens_per_second_p50",
       run.decode_tokens / steps / absl::ToDoubleSeconds(median_step)},
      {"cpu_us_per_token", CpuMicrosecondsPerToken(run)},
      {"device_idle_share",
       absl::FDivDuration(run.device_idle, run.decode_time)},
      {"device_idle_us_per_step",
       absl::ToDoubleMicroseconds(run.device_idle) / steps},
      {"schedule_us_per_step",
       absl::ToDoubleMicroseconds(run.schedule_time) / steps},
      {"commit_us_per_step",
       absl::ToDoubleMicroseconds(run.commit_time) / steps},
      {"rows_per_step", run.rows / steps},
      {"wasted_rows_share", run.wasted_rows / std::max(1.0, double(run.rows))},
      {"drafts_made", run.drafts_made},
      {"drafts_verified", ByPlace(run.drafts_verified)},
      {"drafts_accepted", ByPlace(run.drafts_accepted)},
      {"tokens_per_sequence_step",
       run.decode_tokens / static_cast<double>(run.sequence_steps)}};
  if (options.tokens) json["tokens"] = run.tokens;
  return json;
}

std::vector<EngineVariant> MakeVariants(const Options& options) {
  const EngineVariant asked = {
      .name = "asked",
      .pipeline_depth = options.pipeline_depth,
      .num_draft_tokens = options.num_draft_tokens,
      .adaptive_verification = options.adaptive_verification};
  if (!options.compare) return {asked};
  std::vector<EngineVariant> variants;
  for (const uint32_t drafts : {0u, options.num_draft_tokens}) {
    for (const uint32_t depth : {1u, options.pipeline_depth}) {
      EngineVariant variant = asked;
      variant.name = absl::StrCat("depth ", depth, ", ", drafts, " drafts");
      variant.pipeline_depth = depth;
      variant.num_draft_tokens = drafts;
      variants.push_back(std::move(variant));
      if (depth == options.pipeline_depth) break;
    }
    if (drafts == options.num_draft_tokens) break;
  }
  return variants;
}

// Of one batch size: all variants, round by round in turns; a line for each, of
// its fastest round, which other load disturbed least.
void RunInTurns(const Options& options,
                const std::vector<EngineVariant>& variants,
                const std::vector<std::unique_ptr<BenchEngine>>& engines,
                const std::vector<GenerationRequest>& requests) {
  std::vector<std::vector<BatchRun>> runs(variants.size());
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (size_t v = 0; v < variants.size(); ++v) {
      runs[v].push_back(engines[v]->Run(requests));
      CHECK(runs[v].back().tokens == runs[0][0].tokens)
          << variants[v].name << " gives other tokens";
    }
  }
  std::vector<double> cpu(variants.size());
  double first = 0;
  for (size_t v = 0; v < variants.size(); ++v) {
    const BatchRun& fastest =
        *std::max_element(runs[v].begin(), runs[v].end(),
                          [](const BatchRun& a, const BatchRun& b) {
                            return TokensPerSecond(a) < TokensPerSecond(b);
                          });
    if (v == 0) first = TokensPerSecond(fastest);
    for (const BatchRun& run : runs[v]) {
      cpu[v] += CpuMicrosecondsPerToken(run) / options.rounds;
    }
    nlohmann::json json = RunJson(
        options, variants[v], static_cast<uint32_t>(requests.size()), fastest);
    if (options.compare) {
      json["ratio_to_first"] = TokensPerSecond(fastest) / first;
      // The mean over all rounds: less of it is of other load.
      json["cpu_ratio_to_first"] = cpu[v] / cpu[0];
    }
    std::cout << json.dump() << std::endl;
  }
}

absl::Status RunBenchmark(const Options& options) {
  ASSIGN_OR_RETURN(const std::vector<uint32_t> sizes, BatchSizes(options));
  const uint32_t largest = *std::max_element(sizes.begin(), sizes.end());
  Prompts prompts;
  size_t longest = options.prompt_tokens;
  if (!options.prompts.empty()) {
    ASSIGN_OR_RETURN(prompts, ReadPrompts(options.prompts, largest));
    longest = 0;
    for (const auto& ids : prompts) longest = std::max(longest, ids.size());
  }

  const std::vector<EngineVariant> variants = MakeVariants(options);
  std::vector<std::unique_ptr<BenchEngine>> engines;
  for (const EngineVariant& variant : variants) {
    ASSIGN_OR_RETURN(
        engines.emplace_back(),
        BenchEngine::Create(
            {.model = options.model,
             .threads = static_cast<int>(options.threads),
             .pin_threads = options.pin_threads,
             .weights = options.weights,
             .cache = options.cache,
             .numerics = options.numerics,
             .max_batch = largest,
             .max_sequence_tokens =
                 static_cast<uint32_t>(longest) + options.max_tokens},
            variant));
  }
  if (prompts.empty()) {
    prompts = RandomPrompts(options, largest, engines[0]->model().vocab_size);
  }
  if (!options.logits_out.empty()) {
    WriteFloats(options.logits_out, engines[0]->LogitsAfter(prompts[0]));
  }
  for (const uint32_t batch : sizes) {
    RunInTurns(options, variants, engines,
               MakeRequests(options, prompts, batch));
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
