// Parity with the reference implementation on every stored case, in float32.

#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "engine/model/testing/model_driver.h"
#include "tests/golden/fp8_model.h"
#include "tests/golden/golden_case.h"

namespace baton {
namespace {

constexpr int kChunk = 256;
constexpr int kMaxExcuses = 2;  // Over all models.

// Counts excuses over all tests of the process.
class Excuses : public testing::Environment {
 public:
  void Count() { ++count_; }
  void TearDown() override { EXPECT_LE(count_, kMaxExcuses); }

 private:
  int count_ = 0;
};
Excuses* const excuses =
    static_cast<Excuses*>(testing::AddGlobalTestEnvironment(new Excuses));

std::unique_ptr<ModelDriver> LoadDriver(const std::string& folder,
                                        VectorIsa isa, Numerics numerics) {
  auto driver = ModelDriver::Create({.load = {.folder = folder,
                                              .cache_dtype = CacheDtype::kF32,
                                              .numerics = numerics,
                                              .max_rows = kChunk,
                                              .max_logits_rows = kChunk},
                                     .isa = isa});
  EXPECT_TRUE(driver.ok()) << driver.status();
  return driver.ok() ? *std::move(driver) : nullptr;
}

void CompareAll(const std::string& model, const std::vector<GoldenCase>& cases,
                const std::string& folder, Numerics numerics) {
  const auto driver =
      LoadDriver(folder, SupportedVectorIsas().back(), numerics);
  ASSERT_NE(driver, nullptr);
  double greatest_error = 0;
  for (const GoldenCase& golden : cases) {
    const GoldenReport report = CompareWithGolden(golden, kChunk, driver.get());
    greatest_error = std::max(greatest_error, report.greatest_error);
    if (report.excused_step.has_value()) {
      excuses->Count();
      const int step = *report.excused_step;
      std::cout << model << " " << golden.name << ": differs at step " << step
                << ", where the reference's margin is " << golden.margins[step]
                << '\n';
    }
  }
  std::cout << model << ", " << NumericsName(numerics) << ": " << cases.size()
            << " cases, greatest error of a logit " << greatest_error << '\n';
}

class GoldenTest : public testing::TestWithParam<Numerics> {};

TEST_P(GoldenTest, TinyDeepSeekV3) {
  CompareAll("tiny-deepseek-v3",
             ReadCases("models/tiny-deepseek-v3/golden", TinyCaseNames()),
             "models/tiny-deepseek-v3", GetParam());
}

TEST_P(GoldenTest, RandomDeepSeekV2Lite) {
  CompareAll(
      "random-deepseek-v2-lite",
      ReadCases("models/random-deepseek-v2-lite/golden", RandomCaseNames()),
      "models/random-deepseek-v2-lite", GetParam());
}

TEST_P(GoldenTest, RandomDeepSeekV3Yarn) {
  CompareAll(
      "random-deepseek-v3-yarn",
      ReadCases("models/random-deepseek-v3-yarn/golden", RandomCaseNames()),
      "models/random-deepseek-v3-yarn", GetParam());
}

TEST(GoldenModelTest, TinyDeepSeekV3Fp8IsDerivedBitForBit) {
  std::map<std::string, std::string> expected;
  std::ifstream file("models/tiny-deepseek-v3-fp8/tensor_hashes.txt");
  for (std::string hash, name; file >> hash >> name;) expected[name] = hash;
  int compared = 0;
  for (const TensorToWrite& tensor : QuantizeModel("models/tiny-deepseek-v3")) {
    const auto it = expected.find(tensor.name);
    if (it == expected.end()) continue;
    EXPECT_EQ(TensorHash(tensor), it->second) << tensor.name;
    ++compared;
  }
  EXPECT_EQ(compared, 2416);
  EXPECT_EQ(static_cast<size_t>(compared), expected.size());
}

TEST_P(GoldenTest, TinyDeepSeekV3Fp8) {
  const std::string folder = WriteQuantizedModel(
      "models/tiny-deepseek-v3", "models/tiny-deepseek-v3-fp8/config.json");
  const std::vector<GoldenCase> cases =
      ReadFp8Cases("models/tiny-deepseek-v3-fp8/golden/fp8.json");
  ASSERT_EQ(cases.size(), 8);
  CompareAll("tiny-deepseek-v3-fp8", cases, folder, GetParam());
}

// The narrower vectors on short cases; tests/golden/row_invariance_test
// compares them bit for bit.
TEST_P(GoldenTest, EveryVectorWidth) {
  const GoldenCase golden =
      ReadCase("models/random-deepseek-v3-yarn/golden", "len_65");
  for (const VectorIsa isa : SupportedVectorIsas()) {
    SCOPED_TRACE(VectorIsaName(isa));
    const auto driver =
        LoadDriver("models/random-deepseek-v3-yarn", isa, GetParam());
    ASSERT_NE(driver, nullptr);
    EXPECT_FALSE(CompareWithGolden(golden, 7, driver.get()).excused_step);
  }
}

INSTANTIATE_TEST_SUITE_P(Numerics, GoldenTest,
                         testing::Values(Numerics::kExact, Numerics::kFast),
                         [](const auto& test) {
                           return std::string(NumericsName(test.param));
                         });

}  // namespace
}  // namespace baton
