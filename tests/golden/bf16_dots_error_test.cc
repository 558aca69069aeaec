// How far fast_bf16 is from exact, over all positions of the stored cases.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/testing/model_driver.h"
#include "tests/golden/golden_case.h"

namespace baton {
namespace {

constexpr int kChunk = 256;

std::unique_ptr<ModelDriver> LoadDriver(const std::string& folder,
                                        Numerics numerics) {
  auto driver = ModelDriver::Create({.load = {.folder = folder,
                                              .cache_dtype = CacheDtype::kF32,
                                              .numerics = numerics,
                                              .max_rows = kChunk,
                                              .max_logits_rows = kChunk},
                                     .isa = SupportedVectorIsas().back()});
  EXPECT_TRUE(driver.ok()) << driver.status();
  return driver.ok() ? *std::move(driver) : nullptr;
}

std::vector<ModelDriver::Logits> LogitsOf(const GoldenCase& golden,
                                          ModelDriver* driver) {
  driver->Reset();
  std::vector<uint32_t> tokens = golden.prompt;
  tokens.insert(tokens.end(), golden.tokens.begin(), golden.tokens.end());
  return driver->Prefill(
      driver->NewSequence(static_cast<int>(golden.prompt.size())), tokens,
      kChunk);
}

struct Difference {
  int positions = 0;
  int other_argmax = 0;
  double greatest = 0;  // Of two logits.
  double size = 0;      // The greatest logit.
};

Difference Compare(const std::string& folder,
                   const std::vector<std::string>& names) {
  const auto exact = LoadDriver(folder, Numerics::kExact);
  const auto fast = LoadDriver(folder, Numerics::kFastBf16);
  Difference difference;
  for (const GoldenCase& golden : ReadCases(folder + "/golden", names)) {
    const auto expected = LogitsOf(golden, exact.get());
    const auto got = LogitsOf(golden, fast.get());
    for (size_t p = 0; p < expected.size(); ++p) {
      ++difference.positions;
      difference.other_argmax += Argmax(expected[p]) != Argmax(got[p]);
      for (size_t i = 0; i < expected[p].size(); ++i) {
        difference.greatest = std::max<double>(
            difference.greatest, std::fabs(expected[p][i] - got[p][i]));
        difference.size =
            std::max<double>(difference.size, std::fabs(expected[p][i]));
      }
    }
  }
  std::cout << folder << ": " << difference.positions
            << " positions, greatest difference of a logit "
            << difference.greatest << " (logits up to " << difference.size
            << "), another best token at " << difference.other_argmax << '\n';
  return difference;
}

TEST(Bf16DotsErrorTest, TinyDeepSeekV3) {
  const Difference difference =
      Compare("models/tiny-deepseek-v3", TinyCaseNames());
  EXPECT_GT(difference.greatest, kLogitTolerance);  // It is another mode.
  EXPECT_LT(difference.greatest, 10);
  EXPECT_LT(difference.other_argmax, difference.positions / 50);
}

TEST(Bf16DotsErrorTest, RandomDeepSeekV2Lite) {
  const Difference difference =
      Compare("models/random-deepseek-v2-lite", RandomCaseNames());
  EXPECT_LT(difference.greatest, 10);
  EXPECT_LT(difference.other_argmax, difference.positions / 10);
}

TEST(Bf16DotsErrorTest, RandomDeepSeekV3Yarn) {
  const Difference difference =
      Compare("models/random-deepseek-v3-yarn", RandomCaseNames());
  EXPECT_LT(difference.greatest, 10);
  EXPECT_LT(difference.other_argmax, difference.positions / 10);
}

}  // namespace
}  // namespace baton
