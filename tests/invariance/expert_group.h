// Ranks of an expert-parallel group in lock step, by hand: no engine, no vote.
#ifndef BATON_TESTS_INVARIANCE_EXPERT_GROUP_H_
#define BATON_TESTS_INVARIANCE_EXPERT_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/expert_dispatch.h"
#include "engine/model/deepseek_v3_runner.h"
#include "engine/step_io.h"
#include "kernels/sample.h"

namespace baton {

// What one sequence is to do, in which steps.
struct GroupJob {
  std::vector<uint32_t> prompt;
  SampleParams params;
  uint32_t num_tokens = 0;
  uint32_t first_step = 0;
  uint32_t chunk_tokens = 0;  // Of the prompt, in one step.
};

struct GroupTokens {
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> logprob_bits;

  friend bool operator==(const GroupTokens&, const GroupTokens&) = default;
};

struct GroupOptions {
  uint32_t num_drafts = 0;  // The weights have a drafter if it is not 0.
  uint32_t max_jobs = 8;    // Of a rank.
  uint32_t num_steps = 0;
  // The placement of a step, of every layer with experts; empty: alone.
  std::function<std::span<const ExpertSlots>(uint32_t step)> slots =
      [](uint32_t) { return std::span<const ExpertSlots>(); };
  // Called before each step of each rank.
  std::function<void(uint32_t step)> before_step = [](uint32_t) {};
  // Behind each; asks for the rows of each slot. May be empty.
  std::function<void(uint32_t step, const StepOutput&)> after_step = {};
};

// The rows of one rank in one step, its drafter's included.
uint32_t MaxGroupRows(const GroupOptions& options);
uint32_t MaxGroupLogitsRows(const GroupOptions& options);

// `count` jobs that are the same on every machine: greedy and seeded sampling.
std::vector<GroupJob> MixedGroupJobs(int count, uint32_t vocab_size);
// Enough for all jobs to end.
uint32_t StepsFor(std::span<const GroupJob> jobs);

// Runs one rank's part of all steps on this thread; each job's tokens. Nothing
// where the group ended before.
std::vector<GroupTokens> RunGroupRank(const GroupOptions& options,
                                      const LoadedDeepSeekV3& weights,
                                      std::unique_ptr<ExpertDispatch> dispatch,
                                      std::span<const GroupJob> jobs);

}  // namespace baton

#endif  // BATON_TESTS_INVARIANCE_EXPERT_GROUP_H_
