#include "engine/expert_load_window.h"

#include <deque>
#include <numeric>
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

// Against a list of all steps.
TEST(ExpertLoadWindowTest, AgreesWithTheStepsThemselves) {
  constexpr uint32_t kLayers = 2, kExperts = 3;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const uint32_t num_steps = 1 + random() % 9;
    const uint32_t per_row = 1 + random() % 4;
    ExpertLoadWindow window({.num_layers = kLayers,
                             .num_experts = kExperts,
                             .num_steps = num_steps,
                             .steps_per_row = per_row});
    const size_t bytes = window.memory_bytes();
    std::deque<std::vector<uint32_t>> steps;  // [layers, experts] each.
    for (uint32_t step = 0; step < 40; ++step) {
      steps.emplace_back(kLayers * kExperts);
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        std::vector<int32_t> tokens(random() % 5);
        for (int32_t& e : tokens) {
          e = static_cast<int32_t>(random() % kExperts);
          ++steps.back()[layer * kExperts + e];
        }
        window.AddTokens(layer, tokens);
        const std::vector<uint32_t> counts = {1, 0, 2};
        window.AddCounts(layer, counts);
        for (uint32_t e = 0; e < kExperts; ++e) {
          steps.back()[layer * kExperts + e] += counts[e];
        }
      }
      window.EndStep();
      const uint64_t held = window.num_steps();
      EXPECT_EQ(window.full(), held >= num_steps);
      EXPECT_EQ(window.full(), step + 1 >= num_steps) << seed;
      EXPECT_LE(held, num_steps + 2 * per_row);
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        std::vector<uint32_t> expected(kExperts), sum(kExperts);
        for (uint64_t i = steps.size() - held; i < steps.size(); ++i) {
          for (uint32_t e = 0; e < kExperts; ++e) {
            expected[e] += steps[i][layer * kExperts + e];
          }
        }
        for (const auto& row : Rows(window.Loads(layer))) {
          for (uint32_t e = 0; e < kExperts; ++e) sum[e] += row[e];
        }
        EXPECT_EQ(sum, expected) << "seed " << seed << " step " << step;
      }
    }
    EXPECT_EQ(window.memory_bytes(), bytes);
  }
}

}  // namespace
}  // namespace baton
