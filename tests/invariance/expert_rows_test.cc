// The rows that a step counts by slot: no row of the group is lost, and none is
// counted twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "comm/shared_expert_dispatch.h"
#include "comm/slot_table.h"
#include "tests/invariance/expert_group.h"
#include "tests/invariance/expert_group_fixture.h"

namespace baton {
namespace {

// What a rank counted, step by step.
struct CountedSteps {
  std::vector<uint32_t> num_rows;                // Of its own tokens.
  std::vector<std::vector<uint32_t>> slot_rows;  // [layers, slots_per_rank]
};

class ExpertRowsTest : public ExpertGroupTest {
 protected:
  uint32_t num_layers() const { return weights_->info().num_expert_layers; }
  uint32_t num_experts() const { return weights_->info().num_experts; }
  size_t slots_per_rank() const { return GetParam().slots_per_rank; }

  // Runs all jobs over the ranks, each on a thread.
  static std::vector<CountedSteps> Run(
      const GroupOptions& options, const LoadedDeepSeekV3& weights,
      const ExpertExchangeOptions& exchange_options,
      const std::vector<GroupJob>& jobs) {
    auto exchange = SharedExpertExchange::Create(exchange_options);
    CHECK_OK(exchange.status());
    const int num_ranks = exchange_options.shape.num_ranks;
    std::vector<CountedSteps> counted(num_ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank] {
        GroupOptions mine = options;
        mine.after_step = [&](uint32_t, const StepOutput& output) {
          counted[rank].num_rows.push_back(output.num_rows);
          counted[rank].slot_rows.push_back(output.expert_rows);
        };
        RunGroupRank(mine, weights, (*exchange)->MakeDispatch(rank),
                     JobsOf(jobs, rank, num_ranks));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return counted;
  }

  // [steps][layers, experts], as one rank with a slot for each expert counts.
  std::vector<std::vector<uint32_t>> CountAlone() const {
    const SlotTable identity =
        SlotTable::Identity(static_cast<int>(num_experts()));
    const std::vector<ExpertSlots> slots(num_layers(), identity.view());
    GroupOptions alone = options_;
    alone.slots = [&](uint32_t) { return std::span<const ExpertSlots>(slots); };
    ExpertExchangeOptions exchange = exchange_options_;
    exchange.shape.num_ranks = 1;
    exchange.shape.slots_per_rank = static_cast<int>(num_experts());
    return Run(alone, *weights_, exchange, jobs_).front().slot_rows;
  }

  // The rows of each of an expert's replicas, in a step's layer.
  std::map<uint32_t, std::vector<uint32_t>> ReplicaRows(
      const std::vector<CountedSteps>& counted, uint32_t step,
      uint32_t layer) const {
    const ExpertSlots slots = placements_->of(step)[layer];
    std::map<uint32_t, std::vector<uint32_t>> rows;
    for (size_t slot = 0; slot < slots.experts.size(); ++slot) {
      const std::vector<uint32_t>& mine =
          counted[slot / slots_per_rank()].slot_rows[step];
      rows[slots.experts[slot]].push_back(
          mine[layer * slots_per_rank() + slot % slots_per_rank()]);
    }
    return rows;
  }
};

uint32_t Sum(const std::vector<uint32_t>& values) {
  uint32_t sum = 0;
  for (const uint32_t value : values) sum += value;
  return sum;
}

// But in the drafter's layer: of its rows, those that nobody reads reach no
// expert, and which these are depends on what else is drafted on their rank.
TEST_P(ExpertRowsTest, EveryExpertCountsAsManyRowsAsInAGroupOfOne) {
  const uint32_t num_compared =
      num_layers() - (GetParam().num_drafts > 1 ? 1 : 0);
  const auto alone = CountAlone();
  const auto counted = Run(options_, *weights_, exchange_options_, jobs_);
  ASSERT_EQ(alone.size(), options_.num_steps);
  for (uint32_t step = 0; step < options_.num_steps; ++step) {
    for (uint32_t layer = 0; layer < num_compared; ++layer) {
      for (const auto& [expert, rows] : ReplicaRows(counted, step, layer)) {
        ASSERT_EQ(Sum(rows), alone[step][layer * num_experts() + expert])
            << "step " << step << " layer " << layer << " expert " << expert;
      }
    }
  }
}

// Without a drafter the last layer's are of the tokens that have logits.
TEST_P(ExpertRowsTest, ALayersRowsAreTopKOfEveryToken) {
  const auto counted = Run(options_, *weights_, exchange_options_, jobs_);
  const uint32_t top_k = weights_->expert_shape().top_k;
  uint32_t num_steps_with_rows = 0;
  for (uint32_t step = 0; step < options_.num_steps; ++step) {
    uint32_t tokens = 0;
    std::vector<uint32_t> layer_rows(num_layers());
    for (const CountedSteps& rank : counted) {
      tokens += rank.num_rows[step];
      for (size_t i = 0; i < rank.slot_rows[step].size(); ++i) {
        layer_rows[i / slots_per_rank()] += rank.slot_rows[step][i];
      }
    }
    num_steps_with_rows += tokens > 0 ? 1 : 0;
    for (uint32_t layer = 0; layer + 1 < num_layers(); ++layer) {
      EXPECT_EQ(layer_rows[layer], tokens * top_k) << step << " " << layer;
    }
    EXPECT_LE(layer_rows.back(), tokens * top_k * (1 + GetParam().num_drafts));
  }
  EXPECT_GT(num_steps_with_rows, 10);
}

// Each rank takes an expert's replicas in turn.
TEST_P(ExpertRowsTest, ReplicasShareTheirExpertsRows) {
  const auto counted = Run(options_, *weights_, exchange_options_, jobs_);
  uint32_t num_shared = 0;
  const auto most = static_cast<uint32_t>(GetParam().num_ranks);
  for (uint32_t step = 0; step < options_.num_steps; ++step) {
    // Several passes of the drafter add up.
    for (uint32_t layer = 0; layer + 1 < num_layers(); ++layer) {
      for (const auto& [expert, rows] : ReplicaRows(counted, step, layer)) {
        const auto [min, max] = std::ranges::minmax_element(rows);
        EXPECT_LE(*max - *min, most) << step << " " << layer << " " << expert;
        num_shared += rows.size() > 1 && *min > 0 ? 1 : 0;
      }
    }
  }
  const bool has_replicas =
      GetParam().num_ranks * slots_per_rank() > num_experts();
  EXPECT_EQ(num_shared > 0, has_replicas);
}

INSTANTIATE_TEST_SUITE_P(Groups, ExpertRowsTest,
                         testing::Values(Group{2, 32, 0}, Group{2, 40, 1},
                                         Group{4, 20, 0}, Group{8, 9, 3}));

}  // namespace
}  // namespace baton
