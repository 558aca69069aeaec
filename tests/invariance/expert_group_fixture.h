// The demo model's ranks, with placements that change from step to step, and
// the tokens of a rank by itself to compare with.
#ifndef BATON_TESTS_INVARIANCE_EXPERT_GROUP_FIXTURE_H_
#define BATON_TESTS_INVARIANCE_EXPERT_GROUP_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "comm/expert_message.h"
#include "comm/shared_expert_dispatch.h"
#include "comm/slot_table.h"
#include "comm/testing/random_slot_table.h"
#include "tests/invariance/expert_group.h"

namespace baton {

inline constexpr int kJobs = 24;

// resident_experts: as of LoadOptions.
inline std::unique_ptr<LoadedDeepSeekV3> LoadDemo(
    const GroupOptions& options,
    std::vector<std::vector<uint32_t>> resident_experts = {}) {
  LoadOptions load;
  load.folder = "models/tiny-deepseek-v3";
  load.max_rows = static_cast<int>(MaxGroupRows(options));
  load.max_logits_rows = static_cast<int>(MaxGroupLogitsRows(options));
  load.drafter = options.num_drafts > 0;
  load.resident_experts = std::move(resident_experts);
  auto weights = LoadedDeepSeekV3::Load(load, {});
  CHECK_OK(weights.status());
  return *std::move(weights);
}

// Placements that change from step to step.
class RandomPlacements {
 public:
  RandomPlacements(const ModelRunnerInfo& model, int num_ranks,
                   int slots_per_rank) {
    std::mt19937 random(3);
    for (uint32_t i = 0; i < kVersions * model.num_expert_layers; ++i) {
      tables_.push_back(RandomSlotTable(static_cast<int>(model.num_experts),
                                        num_ranks, slots_per_rank, &random));
    }
    for (const SlotTable& table : tables_) views_.push_back(table.view());
    num_layers_ = model.num_expert_layers;
  }

  std::span<const ExpertSlots> of(uint32_t step) const {
    return std::span(views_).subspan(step % kVersions * num_layers_,
                                     num_layers_);
  }

 private:
  static constexpr uint32_t kVersions = 3;
  std::vector<SlotTable> tables_;
  std::vector<ExpertSlots> views_;
  size_t num_layers_ = 0;
};

struct Group {
  int num_ranks = 1;
  int slots_per_rank = 64;
  uint32_t num_drafts = 0;
};

// Job j is rank j % ranks's, but the last rank has none where there are more.
inline std::vector<GroupJob> JobsOf(const std::vector<GroupJob>& jobs, int rank,
                                    int num_ranks) {
  const size_t busy = num_ranks > 1 ? num_ranks - 1 : 1;
  std::vector<GroupJob> mine;
  for (size_t j = 0; j < jobs.size(); ++j) {
    if (j % busy == static_cast<size_t>(rank)) mine.push_back(jobs[j]);
  }
  return mine;
}

class ExpertGroupTest : public testing::TestWithParam<Group> {
 protected:
  ExpertGroupTest() {
    options_.num_drafts = GetParam().num_drafts;
    options_.max_jobs = kJobs;
    weights_ = LoadDemo(options_);
    jobs_ = MixedGroupJobs(kJobs, weights_->info().vocab_size);
    options_.num_steps = StepsFor(jobs_);
    exchange_options_ = {.shape = {.experts = weights_->expert_shape(),
                                   .num_ranks = GetParam().num_ranks,
                                   .slots_per_rank = GetParam().slots_per_rank},
                         .deadline = absl::Minutes(2)};
    expected_ = RunGroupRank(options_, *weights_, nullptr, jobs_);
    placements_ = std::make_unique<RandomPlacements>(
        weights_->info(), GetParam().num_ranks, GetParam().slots_per_rank);
    options_.slots = [this](uint32_t step) { return placements_->of(step); };
  }

  // Whether these are the tokens that a rank of one gives.
  bool AreRight(const std::vector<GroupTokens>& tokens, int rank) const {
    const int num_ranks = GetParam().num_ranks;
    const size_t busy = num_ranks > 1 ? num_ranks - 1 : 1;
    size_t next = 0;
    for (size_t j = 0; j < jobs_.size(); ++j) {
      if (j % busy != static_cast<size_t>(rank)) continue;
      if (next == tokens.size() || tokens[next++] != expected_[j]) return false;
    }
    return next == tokens.size();
  }

  // On a thread each; true if all are right.
  bool RunRanks(auto* exchange, RankRange ranks) const {
    std::atomic<bool> right = true;
    std::vector<std::thread> threads;
    for (int rank = ranks.first; rank < ranks.end; ++rank) {
      threads.emplace_back([&, rank] {
        const std::vector<GroupTokens> tokens =
            RunGroupRank(options_, *weights_, exchange->MakeDispatch(rank),
                         JobsOf(jobs_, rank, GetParam().num_ranks));
        if (!AreRight(tokens, rank)) right = false;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return right;
  }

  std::vector<RankRange> Processes() const {
    const int num_ranks = GetParam().num_ranks;
    const int count = std::min(4, num_ranks);
    std::vector<RankRange> ranks;
    for (int i = 0; i < count; ++i) {
      ranks.push_back({num_ranks * i / count, num_ranks * (i + 1) / count});
    }
    return ranks;
  }

  GroupOptions options_;
  std::unique_ptr<const LoadedDeepSeekV3> weights_;
  std::vector<GroupJob> jobs_;
  ExpertExchangeOptions exchange_options_;
  std::vector<GroupTokens> expected_;
  std::unique_ptr<RandomPlacements> placements_;
};

}  // namespace baton

#endif  // BATON_TESTS_INVARIANCE_EXPERT_GROUP_FIXTURE_H_
