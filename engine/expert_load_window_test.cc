#include "engine/expert_load_window.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

std::vector<std::vector<uint32_t>> Rows(const ExpertLoads& loads) {
  std::vector<std::vector<uint32_t>> rows;
  for (uint32_t r = 0; r < loads.num_rows(); ++r) {
    rows.emplace_back(loads.row(r).begin(), loads.row(r).end());
  }
  return rows;
}

void AddStep(ExpertLoadWindow* window, std::vector<int32_t> experts) {
  window->AddTokens(0, experts);
  window->EndStep();
}

TEST(ExpertLoadWindowTest, AViewStartsWithItsOldestRow) {
  const std::vector<uint32_t> counts = {5, 6, 1, 2, 3, 4};
  const ExpertLoads loads(counts, 2, 1);
  EXPECT_THAT(Rows(loads), ElementsAre(ElementsAre(1, 2), ElementsAre(3, 4),
                                       ElementsAre(5, 6)));
  EXPECT_EQ(ExpertLoads({}, 2).num_rows(), 0u);
}

TEST(ExpertLoadWindowTest, KeepsTheNewestStepsOldestFirst) {
  ExpertLoadWindow window(
      {.num_layers = 1, .num_experts = 3, .num_steps = 2, .steps_per_row = 1});
  EXPECT_EQ(window.Loads(0).num_rows(), 0u);
  AddStep(&window, {0, 0});
  EXPECT_FALSE(window.full());
  EXPECT_THAT(Rows(window.Loads(0)), ElementsAre(ElementsAre(2, 0, 0)));
  AddStep(&window, {1});
  EXPECT_TRUE(window.full());
  AddStep(&window, {2, 2, 2});
  EXPECT_EQ(window.num_steps(), 2u);
  // The third row is the open step's.
  EXPECT_THAT(Rows(window.Loads(0)),
              ElementsAre(ElementsAre(0, 1, 0), ElementsAre(0, 0, 3),
                          ElementsAre(0, 0, 0)));
}

TEST(ExpertLoadWindowTest, IdleStepsCount) {
  ExpertLoadWindow window({.num_layers = 1, .num_experts = 1, .num_steps = 4});
  for (int i = 0; i < 4; ++i) window.EndStep();
  EXPECT_TRUE(window.full());
  EXPECT_THAT(Rows(window.Loads(0)), ElementsAre(ElementsAre(0)));
}

TEST(ExpertLoadWindowTest, ClearForgetsAll) {
  ExpertLoadWindow window(
      {.num_layers = 1, .num_experts = 2, .num_steps = 4, .steps_per_row = 2});
  for (int i = 0; i < 9; ++i) AddStep(&window, {1});
  window.Clear();
  EXPECT_EQ(window.num_steps(), 0u);
  EXPECT_EQ(window.Loads(0).num_rows(), 0u);
  AddStep(&window, {0});
  EXPECT_THAT(Rows(window.Loads(0)), ElementsAre(ElementsAre(1, 0)));
}

TEST(ExpertLoadWindowTest, MergedRanksCountAsOne) {
  const ExpertLoadWindowOptions options = {
      .num_layers = 1, .num_experts = 2, .num_steps = 3, .steps_per_row = 2};
  ExpertLoadWindow a(options), b(options);
  for (int i = 0; i < 7; ++i) {
    AddStep(&a, {0});
    AddStep(&b, {1, 1});
  }
  a.Merge(b);
  EXPECT_THAT(
      Rows(a.Loads(0)),
      ElementsAre(ElementsAre(2, 4), ElementsAre(2, 4), ElementsAre(1, 2)));
}

TEST(ExpertLoadWindowTest, ProductionSizeIsSmall) {
  const ExpertLoadWindow window({.num_layers = 58, .num_experts = 256});
  EXPECT_LE(window.memory_bytes(), 4u << 20);
}

// A window beside the list of all its steps.
class WindowAndSteps {
 public:
  static constexpr uint32_t kLayers = 2, kExperts = 3;

  WindowAndSteps(uint32_t num_steps, uint32_t steps_per_row)
      : num_steps_(num_steps),
        steps_per_row_(steps_per_row),
        window_({.num_layers = kLayers,
                 .num_experts = kExperts,
                 .num_steps = num_steps,
                 .steps_per_row = steps_per_row}) {}

  void AddStep(std::mt19937* random) {
    steps_.emplace_back(kLayers * kExperts);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      uint32_t* step = &steps_.back()[layer * kExperts];
      std::vector<int32_t> tokens((*random)() % 5);
      for (int32_t& e : tokens) {
        e = static_cast<int32_t>((*random)() % kExperts);
        ++step[e];
      }
      window_.AddTokens(layer, tokens);
      const std::vector<uint32_t> counts = {1, 0, 2};
      window_.AddCounts(layer, counts);
      for (uint32_t e = 0; e < kExperts; ++e) step[e] += counts[e];
      // Two slots of expert 2, one of expert 0.
      window_.AddSlots(layer, std::vector<uint32_t>{2, 0, 2}, counts);
      step[2] += counts[0] + counts[2];
      step[0] += counts[1];
    }
    window_.EndStep();
  }

  void ExpectAgreement() const {
    const uint64_t held = window_.num_steps();
    EXPECT_EQ(window_.full(), steps_.size() >= num_steps_);
    EXPECT_GE(held, std::min<uint64_t>(steps_.size(), num_steps_));
    EXPECT_LT(held, num_steps_ + 2 * steps_per_row_);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(WindowSum(layer), NewestSum(layer, held));
    }
  }

 private:
  std::vector<uint32_t> WindowSum(uint32_t layer) const {
    std::vector<uint32_t> sum(kExperts);
    for (const auto& row : Rows(window_.Loads(layer))) {
      for (uint32_t e = 0; e < kExperts; ++e) sum[e] += row[e];
    }
    return sum;
  }
  std::vector<uint32_t> NewestSum(uint32_t layer, uint64_t num) const {
    std::vector<uint32_t> sum(kExperts);
    for (uint64_t i = steps_.size() - num; i < steps_.size(); ++i) {
      for (uint32_t e = 0; e < kExperts; ++e) {
        sum[e] += steps_[i][layer * kExperts + e];
      }
    }
    return sum;
  }

  const uint32_t num_steps_, steps_per_row_;
  ExpertLoadWindow window_;
  std::vector<std::vector<uint32_t>> steps_;  // [layers, experts] each.
};

TEST(ExpertLoadWindowTest, AgreesWithTheStepsThemselves) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const uint32_t num_steps = 1 + random() % 9;
    WindowAndSteps both(num_steps, 1 + random() % 4);
    for (uint32_t step = 0; step < 40; ++step) {
      both.AddStep(&random);
      both.ExpectAgreement();
    }
  }
}

}  // namespace
}  // namespace baton
