// Ranks that hold the experts of their own slots alone, as processes do, give
// the tokens of one rank that holds them all; also while experts move.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/logging.h"
#include "comm/shared_expert_dispatch.h"
#include "tests/invariance/expert_group.h"
#include "tests/invariance/expert_group_fixture.h"

namespace baton {
namespace {

using Experts = std::vector<std::vector<uint32_t>>;
using Ranks = std::vector<std::unique_ptr<LoadedDeepSeekV3>>;

class ResidentExpertsTest : public ExpertGroupTest {
 protected:
  // Those in a rank's slots, by layer.
  Experts ExpertsOf(std::span<const ExpertSlots> placement, int rank) const {
    const auto num_slots = static_cast<size_t>(GetParam().slots_per_rank);
    Experts experts;
    for (const ExpertSlots& layer : placement) {
      const auto mine = layer.experts.subspan(rank * num_slots, num_slots);
      const std::set<uint32_t> sorted(mine.begin(), mine.end());
      experts.emplace_back(sorted.begin(), sorted.end());
    }
    return experts;
  }

  // Each rank with its own weights, on a thread; true if all are right.
  bool RunRanksWith(
      const Ranks& weights,
      const std::function<GroupOptions(int rank)>& options_of) const {
    auto exchange = SharedExpertExchange::Create(exchange_options_);
    CHECK_OK(exchange.status());
    std::atomic<bool> right = true;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < GetParam().num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const std::vector<GroupTokens> tokens = RunGroupRank(
            options_of(rank), *weights[rank], (*exchange)->MakeDispatch(rank),
            JobsOf(jobs_, rank, GetParam().num_ranks));
        if (!AreRight(tokens, rank)) right = false;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return right;
  }

  // One for each rank.
  Ranks LoadFor(std::span<const ExpertSlots> placement) const {
    Ranks weights;
    for (int rank = 0; rank < GetParam().num_ranks; ++rank) {
      weights.push_back(LoadDemo(options_, ExpertsOf(placement, rank)));
    }
    return weights;
  }

  // What each rank lacks for a placement; gives how many.
  uint32_t AddMissing(const Ranks& weights, uint32_t placement) const {
    return CountExperts(placement, [&](int rank, Place at, bool wanted) {
      if (!wanted || weights[rank]->HasExpert(at.layer, at.expert)) return 0;
      EXPECT_TRUE(weights[rank]->AddExpert(at.layer, at.expert).ok());
      return 1;
    });
  }

  // What a rank does not need for it.
  uint32_t RemoveOthers(const Ranks& weights, uint32_t placement) const {
    return CountExperts(placement, [&](int rank, Place at, bool wanted) {
      if (wanted || !weights[rank]->HasExpert(at.layer, at.expert)) return 0;
      weights[rank]->RemoveExpert(at.layer, at.expert);
      return 1;
    });
  }

 private:
  struct Place {
    uint32_t layer = 0;
    uint32_t expert = 0;
  };

  // The sum over all ranks and experts of visit(rank, place, is in a slot).
  uint32_t CountExperts(
      uint32_t placement,
      const std::function<uint32_t(int, Place, bool)>& visit) const {
    uint32_t count = 0;
    for (int rank = 0; rank < GetParam().num_ranks; ++rank) {
      const Experts wanted = ExpertsOf(placements_->of(placement), rank);
      const uint32_t num_experts = weights_->info().num_experts;
      for (uint32_t i = 0; i < wanted.size() * num_experts; ++i) {
        const Place at = {i / num_experts, i % num_experts};
        count += visit(rank, at,
                       std::ranges::binary_search(wanted[at.layer], at.expert));
      }
    }
    return count;
  }
};

TEST_P(ResidentExpertsTest,
       RanksThatHoldTheirOwnSlotsExpertsGiveTheSameTokens) {
  const std::span<const ExpertSlots> placement = placements_->of(0);
  const auto weights = LoadFor(placement);
  GroupOptions options = options_;
  options.slots = [&](uint32_t) { return placement; };
  EXPECT_TRUE(RunRanksWith(weights, [&](int) { return options; }));
}

// Steps go from placement to placement as fast as a mover thread allows: it
// adds the experts of the next one while the steps of this one run, and removes
// the others once all ranks are done with it.
class Mover {
 public:
  static constexpr uint32_t kStepsOfPlacement = 4;

  Mover(uint32_t num_steps, int num_ranks) : num_steps_(num_steps) {
    next_step_.resize(num_ranks);
  }

  static uint32_t PlacementOf(uint32_t step) {
    return step / kStepsOfPlacement;
  }

  // By a rank: it is done with all steps before.
  void BeforeStep(int rank, uint32_t step) {
    absl::MutexLock lock(&mutex_);
    next_step_[rank] = step;
    const auto ready = [&] { return placement_ >= PlacementOf(step); };
    mutex_.Await(absl::Condition(&ready));
  }

  // add(i): what placement i lacks; remove(i): what it does not need.
  void Run(const std::function<void(uint32_t)>& add,
           const std::function<void(uint32_t)>& remove) {
    for (uint32_t next = 1; next <= PlacementOf(num_steps_ - 1); ++next) {
      add(next);
      MoveTo(next);
      remove(next);
    }
  }

 private:
  // Until every rank is there.
  void MoveTo(uint32_t placement) {
    absl::MutexLock lock(&mutex_);
    placement_ = placement;
    const auto all_there = [&] {
      return PlacementOf(*std::ranges::min_element(next_step_)) >= placement;
    };
    mutex_.Await(absl::Condition(&all_there));
  }

  const uint32_t num_steps_;
  absl::Mutex mutex_;
  // Both guarded by it.
  uint32_t placement_ = 0;
  std::vector<uint32_t> next_step_;  // Of each rank.
};

TEST_P(ResidentExpertsTest, ExpertsComeAndGoWhileStepsRun) {
  const auto weights = LoadFor(placements_->of(0));
  Mover mover(options_.num_steps, GetParam().num_ranks);
  uint32_t num_added = 0;
  uint32_t num_removed = 0;
  std::thread thread([&] {
    mover.Run([&](uint32_t i) { num_added += AddMissing(weights, i); },
              [&](uint32_t i) { num_removed += RemoveOthers(weights, i); });
  });
  EXPECT_TRUE(RunRanksWith(weights, [&](int rank) {
    GroupOptions options = options_;
    options.slots = [&](uint32_t step) {
      return placements_->of(Mover::PlacementOf(step));
    };
    options.before_step = [&, rank](uint32_t step) {
      mover.BeforeStep(rank, step);
    };
    return options;
  }));
  thread.join();
  EXPECT_GT(num_removed, 100u);
  EXPECT_EQ(num_added, num_removed);
}

INSTANTIATE_TEST_SUITE_P(Groups, ResidentExpertsTest,
                         testing::Values(Group{2, 32, 0}, Group{3, 24, 2}));

}  // namespace
}  // namespace baton
