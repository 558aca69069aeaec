#include "server/expert_balancer.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

constexpr ExpertLayout kLayout = {
    .num_layers = 3, .num_experts = 8, .num_ranks = 4, .slots_per_rank = 2};
constexpr int kFirstRound = 12;  // Steps until its loads are told.

// The experts in memory. Thread-safe.
class Memory {
 public:
  static constexpr uint32_t kNone = 1000;

  explicit Memory(uint32_t process) {
    const ExpertPlacement placement(kLayout);
    for (uint32_t layer = 0; layer < kLayout.num_layers; ++layer) {
      for (const uint32_t e :
           placement.experts(layer).subspan(size_t{process} * 4, 4)) {
        experts_.insert({layer, e});
      }
    }
  }
  absl::Status Load(uint32_t layer, uint32_t expert) {
    absl::MutexLock lock(&mutex_);
    if (layer == broken_layer_) return absl::DataLossError("a bad disk");
    EXPECT_TRUE(experts_.insert({layer, expert}).second);
    return absl::OkStatus();
  }
  void Drop(uint32_t layer, uint32_t expert) {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(experts_.erase({layer, expert}), 1u);
  }
  void Break(uint32_t layer) {
    absl::MutexLock lock(&mutex_);
    broken_layer_ = layer;
  }
  std::vector<LayerExpert> experts() const {
    absl::MutexLock lock(&mutex_);
    return {experts_.begin(), experts_.end()};
  }

 private:
  mutable absl::Mutex mutex_;
  std::set<LayerExpert> experts_;
  uint32_t broken_layer_ = kNone;
};

// Two processes of two ranks each, turned by the test; the threads of each are
// real. At first all the load is on process 0's experts.
class ExpertBalancerTest : public testing::Test {
 protected:
  ExpertBalancerTest() {
    for (uint32_t p = 0; p < 2; ++p) {
      memory_[p] = std::make_unique<Memory>(p);
      balancers_[p] = std::make_unique<ExpertBalancer>(
          Options(p), &clock_, p == 0 ? &metrics_ : nullptr);
    }
  }

  ExpertBalancerOptions Options(uint32_t p) {
    Memory* memory = memory_[p].get();
    return {
        .rebalance = {.num_processes = 2,
                      .process = p,
                      .mover = {.layout = kLayout,
                                .first_rank = 2 * p,
                                .num_local_ranks = 2},
                      .interval = 40,
                      .window_steps = 16,
                      .max_layers_in_flight = 2,
                      .send =
                          [this, p](uint32_t to, const std::string& bytes) {
                            EXPECT_TRUE(balancers_[to]->OnMessage(p, bytes));
                          }},
        .expert_bytes = 1000,
        .load_expert =
            [memory](uint32_t layer, uint32_t expert) {
              return memory->Load(layer, expert);
            },
        .drop_expert = [memory](
                           uint32_t layer,
                           uint32_t expert) { memory->Drop(layer, expert); },
        .wake =
            [this] {
              absl::MutexLock lock(&mutex_);
              woken_ = true;
            }};
  }

  void TakeSteps(int count) {
    for (int i = 0; i < count; ++i) TakeStep();
  }
  void TakeStep() {
    Ballot all;
    for (const auto& balancer : balancers_) {
      Ballot ballot = {.num_ranks = 2, .decode_rows = 1};
      balancer->AmendBallot(&ballot);
      all.Merge(ballot);
    }
    StepDecision decision;
    decision.placement_version = all.placement_version;
    for (uint32_t p = 0; p < 2; ++p) {
      const auto slots = balancers_[p]->SlotsOf(decision);
      for (uint32_t rank = 0; rank < 2; ++rank) {
        balancers_[p]->OnStepRows(rank, RowsOf(slots, 2 * p + rank));
      }
    }
  }
  static std::vector<uint32_t> RowsOf(std::span<const ExpertSlots> slots,
                                      uint32_t rank) {
    std::vector<uint32_t> rows;
    for (const ExpertSlots& layer : slots) {
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t e = layer.experts[2 * rank + i];
        rows.push_back(e < 4 ? 40 : 0);
      }
    }
    return rows;
  }
  // Steps, and what the threads have done, until then.
  void StepUntil(const std::function<bool()>& done) {
    while (!done()) {
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&woken_));
        woken_ = false;
      }
      for (const auto& balancer : balancers_) balancer->Turn();
      TakeSteps(2);
    }
  }
  bool IsOver(uint64_t plan) const {
    return std::all_of(
        balancers_.begin(), balancers_.end(), [plan](const auto& balancer) {
          return balancer->rebalance().mover().closed_plan() == plan;
        });
  }
  std::vector<LayerExpert> Local(uint32_t p) const {
    const ExpertMover& mover = balancers_[p]->rebalance().mover();
    return mover.LocalExperts(mover.tables().placement());
  }
  std::string Metrics() {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

  SimulatedClock clock_;
  prometheus::Registry registry_;
  BalanceMetrics metrics_{&registry_, "decode"};
  absl::Mutex mutex_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::array<std::unique_ptr<Memory>, 2> memory_;
  std::array<std::unique_ptr<ExpertBalancer>, 2> balancers_;
};

TEST_F(ExpertBalancerTest, ExpertsMoveWhileStepsGoOn) {
  TakeSteps(kFirstRound);
  StepUntil([this] { return IsOver(1); });
  const uint64_t version = balancers_[0]->rebalance().placement_version();
  EXPECT_EQ(version, 3u);
  EXPECT_EQ(balancers_[1]->rebalance().placement_version(), version);
  const std::array<std::vector<LayerExpert>, 2> local = {Local(0), Local(1)};
  EXPECT_NE(local[0], Memory(0).experts());
  for (uint32_t p = 0; p < 2; ++p) {
    EXPECT_TRUE(balancers_[p]->End().ok());
    EXPECT_EQ(memory_[p]->experts(), Memory(p).experts());
  }
  const std::string text = Metrics();
  for (const char* line :
       {"baton_expert_plans_total{role=\"decode\",outcome=\"moving\"} 1",
        "baton_expert_moves_total{role=\"decode\",outcome=\"moved\"} 3",
        "_load_ratio{role=\"decode\",layer=\"2\",state=\"present\"} 2",
        "baton_expert_placement_version{role=\"decode\"} 3"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST_F(ExpertBalancerTest, WhatSlotsHaveIsInMemoryAndNothingElse) {
  TakeSteps(kFirstRound);
  StepUntil([this] { return IsOver(1); });
  // The threads still drop what the last batch replaced: ask them for more.
  TakeSteps(40);
  StepUntil([this] {
    return balancers_[0]->rebalance().counters().balanced_plans == 1;
  });
  EXPECT_EQ(memory_[0]->experts(), Local(0));
  EXPECT_TRUE(balancers_[1]->End().ok());
}

TEST_F(ExpertBalancerTest, AnExpertThatDoesNotLoadEndsThePlanForAll) {
  memory_[1]->Break(2);
  TakeSteps(kFirstRound);
  StepUntil([this] { return IsOver(1); });
  const ExpertRebalanceCounters& leader = balancers_[0]->rebalance().counters();
  EXPECT_EQ(leader.abandoned_plans, 1u);
  EXPECT_EQ(balancers_[0]->rebalance().placement_version(),
            balancers_[1]->rebalance().placement_version());
  EXPECT_LT(balancers_[0]->rebalance().placement_version(), 3u);
  for (uint32_t p = 0; p < 2; ++p) EXPECT_TRUE(balancers_[p]->End().ok());
  EXPECT_EQ(memory_[1]->experts(), Memory(1).experts());
}

TEST_F(ExpertBalancerTest, AnEpochMayEndWhileExpertsAreLoaded) {
  TakeSteps(kFirstRound);
  StepUntil([this] {
    return balancers_[1]->rebalance().mover().phase() ==
           ExpertMovePhase::kLoading;
  });
  for (uint32_t p = 0; p < 2; ++p) {
    EXPECT_TRUE(balancers_[p]->End().ok());
    EXPECT_EQ(memory_[p]->experts(), Memory(p).experts());
  }
}

TEST_F(ExpertBalancerTest, WhatCannotBeLoadedAgainIsSaidAndTriedAgain) {
  TakeSteps(kFirstRound);
  StepUntil([this] { return IsOver(1); });
  for (uint32_t layer = 0; layer < kLayout.num_layers; ++layer) {
    memory_[0]->Break(layer);
    if (balancers_[0]->End().ok()) continue;
    memory_[0]->Break(Memory::kNone);
    EXPECT_TRUE(balancers_[0]->End().ok());
    EXPECT_EQ(memory_[0]->experts(), Memory(0).experts());
    return;
  }
  FAIL() << "nothing had to be loaded";
}

}  // namespace
}  // namespace baton
