#include "tests/invariance/expert_group.h"

#include <algorithm>
#include <bit>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/logging.h"
#include "engine/cache_spec.h"
#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "engine/engine_options.h"
#include "kernels/cpu_context.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {
namespace {

constexpr uint32_t kMaxChunkTokens = 48;
constexpr uint32_t kMaxPromptTokens = 90;
constexpr uint32_t kMaxTokens = 10;
constexpr uint32_t kBlocksPerJob = 2;
static_assert(kMaxPromptTokens + kMaxTokens + 1 + kMaxDraftTokens <=
              kBlocksPerJob * CacheSpec::kBlockTokens);

EngineOptions EngineOptionsOf(const GroupOptions& options) {
  EngineOptions engine;
  engine.max_running_requests = options.max_jobs;
  engine.max_batched_tokens = options.max_jobs * kMaxChunkTokens;
  engine.num_draft_tokens = options.num_drafts;
  return engine;
}

class GroupRank {
 public:
  GroupRank(const GroupOptions& options, const LoadedDeepSeekV3& weights,
            std::unique_ptr<ExpertDispatch> dispatch,
            std::span<const GroupJob> jobs)
      : options_(options),
        jobs_(jobs),
        runner_(&weights, {.isa = SupportedVectorIsas().back()},
                std::move(dispatch)),
        pool_(std::max<uint32_t>(1, jobs.size() * kBlocksPerJob),
              runner_.info().cache.block_bytes(), 0xff),
        executor_(EngineOptionsOf(options), {.model = &runner_,
                                             .pool = pool_.get(),
                                             .stream = &stream_,
                                             .clock = &clock_}),
        tokens_(jobs.size()) {
    CHECK_LE(jobs.size(), options.max_jobs);
    runner_.BindKvPool(pool_.get());
    output_.samples.resize(options.max_jobs);
    output_.top.resize(options.max_jobs * (1 + kMaxDraftTokens) *
                       kMaxTopLogprobs);
    if (!options.after_step) return;
    const ModelRunnerInfo& info = runner_.info();
    output_.expert_rows.resize(size_t{info.num_expert_layers} *
                               info.slots_per_rank);
  }

  // False: the group has ended.
  bool Run(uint32_t step) {
    StepInput input;
    input.expert_slots = options_.slots(step);
    // Often fewer than the drafts asked for need.
    if (options_.num_drafts > 0 && !input.expert_slots.empty()) {
      input.num_draft_passes = 1 + step % options_.num_drafts;
    }
    std::vector<size_t> drawing;
    for (size_t j = 0; j < jobs_.size(); ++j) {
      AddRows(step, j, &input, &drawing);
    }
    executor_.LaunchForward(&input, &output_);
    executor_.LaunchSample(&input, &output_);
    while (stream_.Poll()) {
    }
    if (output_.abandoned) return false;
    if (options_.after_step) options_.after_step(step, output_);
    for (size_t i = 0; i < drawing.size(); ++i) Keep(drawing[i], i);
    return true;
  }

  std::vector<GroupTokens> TakeTokens() { return std::move(tokens_); }

 private:
  void AddRows(uint32_t step, size_t j, StepInput* input,
               std::vector<size_t>* drawing) const {
    const GroupJob& job = jobs_[j];
    if (step < job.first_step) return;
    if (tokens_[j].token_ids.size() >= job.num_tokens) return;
    const uint32_t first = (step - job.first_step) * job.chunk_tokens;
    const auto prompt_tokens = static_cast<uint32_t>(job.prompt.size());
    StepRows rows = {
        .slot = static_cast<uint32_t>(j),
        .end_position = kBlocksPerJob * CacheSpec::kBlockTokens,
        .first_block = static_cast<uint32_t>(input->block_tables.size()),
        .prompt_tokens = prompt_tokens,
        .num_drafts = options_.num_drafts};
    for (uint32_t b = 0; b < kBlocksPerJob; ++b) {
      input->block_tables.push_back(static_cast<uint32_t>(j) * kBlocksPerJob +
                                    b);
    }
    if (first < prompt_tokens) {
      rows.first_position = first;
      rows.num_rows = std::min(job.chunk_tokens, prompt_tokens - first);
      rows.first_token = static_cast<uint32_t>(input->token_ids.size());
      input->token_ids.insert(input->token_ids.end(),
                              job.prompt.begin() + first,
                              job.prompt.begin() + first + rows.num_rows);
    } else {
      rows.source = RowSource::kDevice;
      rows.num_rows = 1 + options_.num_drafts;
    }
    if (first + job.chunk_tokens >= prompt_tokens) {
      rows.sample = static_cast<int32_t>(input->samples.size());
      input->samples.push_back({.params = job.params});
      drawing->push_back(j);
    }
    input->rows.push_back(rows);
  }

  void Keep(size_t j, size_t sample) {
    const SampleOutput& drawn = output_.samples[sample];
    for (uint32_t i = 0; i < drawn.num_tokens; ++i) {
      if (tokens_[j].token_ids.size() == jobs_[j].num_tokens) return;
      tokens_[j].token_ids.push_back(drawn.tokens[i].token_id);
      tokens_[j].logprob_bits.push_back(
          std::bit_cast<uint32_t>(drawn.tokens[i].logprob));
    }
  }

  const GroupOptions& options_;
  const std::span<const GroupJob> jobs_;
  MonotonicClock clock_;
  CpuDeviceStream stream_;
  DeepSeekV3Runner runner_;
  HeapKvPool pool_;
  CpuStepExecutor executor_;
  StepOutput output_;
  std::vector<GroupTokens> tokens_;
};

}  // namespace

uint32_t MaxGroupRows(const GroupOptions& options) {
  return EngineOptionsOf(options).max_rows();
}

uint32_t MaxGroupLogitsRows(const GroupOptions& options) {
  return EngineOptionsOf(options).max_logits_rows();
}

std::vector<GroupJob> MixedGroupJobs(int count, uint32_t vocab_size) {
  std::mt19937 random(5);
  std::vector<GroupJob> jobs;
  for (int j = 0; j < count; ++j) {
    GroupJob job;
    job.prompt.resize(1 + random() % kMaxPromptTokens);
    for (uint32_t& token : job.prompt) token = random() % vocab_size;
    job.params.temperature = j % 3 == 0 ? 0.0f : 0.8f;
    job.params.top_p = j % 3 == 1 ? 0.9f : 1.0f;
    job.params.seed = random();
    job.num_tokens = 1 + random() % kMaxTokens;
    job.first_step = random() % 6;
    job.chunk_tokens = 1 + random() % kMaxChunkTokens;
    jobs.push_back(std::move(job));
  }
  return jobs;
}

uint32_t StepsFor(std::span<const GroupJob> jobs) {
  uint32_t steps = 0;
  for (const GroupJob& job : jobs) {
    const auto prompt_tokens = static_cast<uint32_t>(job.prompt.size());
    const uint32_t chunks =
        (prompt_tokens + job.chunk_tokens - 1) / job.chunk_tokens;
    steps = std::max(steps, job.first_step + chunks + job.num_tokens - 1);
  }
  return steps;
}

std::vector<GroupTokens> RunGroupRank(const GroupOptions& options,
                                      const LoadedDeepSeekV3& weights,
                                      std::unique_ptr<ExpertDispatch> dispatch,
                                      std::span<const GroupJob> jobs) {
  GroupRank rank(options, weights, std::move(dispatch), jobs);
  for (uint32_t step = 0; step < options.num_steps; ++step) {
    options.before_step(step);
    if (!rank.Run(step)) return {};
  }
  return rank.TakeTokens();
}

}  // namespace baton
