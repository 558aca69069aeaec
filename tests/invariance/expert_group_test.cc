// The size of an expert-parallel group, its placement, its processes: none of
// it changes a bit.
#include "tests/invariance/expert_group.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/logging.h"
#include "comm/shared_expert_dispatch.h"
#include "comm/slot_table.h"
#include "comm/testing/random_slot_table.h"

namespace baton {
namespace {

constexpr int kJobs = 24;

std::unique_ptr<const LoadedDeepSeekV3> LoadDemo(const GroupOptions& options) {
  LoadOptions load;
  load.folder = "models/tiny-deepseek-v3";
  load.max_rows = static_cast<int>(MaxGroupRows(options));
  load.max_logits_rows = static_cast<int>(MaxGroupLogitsRows(options));
  load.drafter = options.num_drafts > 0;
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
std::vector<GroupJob> JobsOf(const std::vector<GroupJob>& jobs, int rank,
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

  bool RunRank(SharedExpertExchange* exchange, int rank) const {
    return AreRight(
        RunGroupRank(options_, *weights_, exchange->MakeDispatch(rank),
                     JobsOf(jobs_, rank, GetParam().num_ranks)),
        rank);
  }

  GroupOptions options_;
  std::unique_ptr<const LoadedDeepSeekV3> weights_;
  std::vector<GroupJob> jobs_;
  ExpertExchangeOptions exchange_options_;
  std::vector<GroupTokens> expected_;
  std::unique_ptr<RandomPlacements> placements_;
};

TEST_P(ExpertGroupTest, RanksAsThreadsGiveTheTokensOfOneRank) {
  auto exchange = SharedExpertExchange::Create(exchange_options_);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < GetParam().num_ranks; ++rank) {
    threads.emplace_back(
        [&, rank] { EXPECT_TRUE(RunRank(exchange->get(), rank)) << rank; });
  }
  for (std::thread& thread : threads) thread.join();
}

// Two ranks a process.
TEST_P(ExpertGroupTest, RanksInProcessesGiveTheTokensOfOneRank) {
  const int num_ranks = GetParam().num_ranks;
  auto exchange = SharedExpertExchange::Create(exchange_options_);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  std::vector<pid_t> children;
  for (int first = 0; first < num_ranks; first += 2) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    auto mine =
        SharedExpertExchange::Open(exchange_options_, (*exchange)->path());
    if (!mine.ok()) _exit(2);
    std::atomic<bool> right = true;
    std::vector<std::thread> threads;
    for (int rank = first; rank < std::min(first + 2, num_ranks); ++rank) {
      threads.emplace_back([&, rank] {
        if (!RunRank(mine->get(), rank)) right = false;
      });
    }
    for (std::thread& thread : threads) thread.join();
    _exit(right ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST_P(ExpertGroupTest, AnEndInTheMiddleOfAStepEndsEveryRank) {
  const int num_ranks = GetParam().num_ranks;
  auto exchange = SharedExpertExchange::Create(exchange_options_);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      GroupOptions options = options_;
      // The others are in step 4, or wait in it.
      options.before_step = [&](uint32_t step) {
        if (rank == 0 && step == 4) (*exchange)->End();
      };
      EXPECT_TRUE(RunGroupRank(options, *weights_,
                               (*exchange)->MakeDispatch(rank),
                               JobsOf(jobs_, rank, num_ranks))
                      .empty());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Groups, ExpertGroupTest,
                         testing::Values(Group{1, 64, 0}, Group{2, 32, 0},
                                         Group{2, 40, 3}, Group{4, 16, 2},
                                         Group{4, 20, 0}, Group{8, 8, 3},
                                         Group{8, 9, 0}, Group{64, 1, 0},
                                         Group{64, 2, 3}));

}  // namespace
}  // namespace baton
