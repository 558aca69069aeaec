#include "kernels/elementwise.h"

#include <cmath>

#include "gtest/gtest.h"
#include "kernels/reference/elementwise_reference.h"
#include "kernels/reference/isa_test.h"
#include "kernels/reference/random_values.h"
#include "kernels/thread_pool.h"

namespace baton {
namespace {

constexpr int kSizes[] = {1, 2, 8, 15, 16, 17, 24, 33, 96, 192, 513, 1025};

MatrixView<const float> View(const std::vector<float>& values, int rows) {
  return Dense<const float>(values.data(), rows,
                            static_cast<int>(values.size()) / rows);
}
MatrixView<float> View(std::vector<float>& values, int rows) {
  return Dense(values.data(), rows, static_cast<int>(values.size()) / rows);
}

class ElementwiseTest : public IsaTest {};

TEST_P(ElementwiseTest, RmsNormIsCloseToTheReference) {
  RandomValues random(1);
  for (int cols : kSizes) {
    const std::vector<float> x = random.Normals(static_cast<size_t>(cols), 3);
    const std::vector<float> weight = random.Normals(static_cast<size_t>(cols));
    std::vector<float> y(x.size());
    RmsNorm(context(), View(x, 1), weight.data(), 1e-6f, View(y, 1));
    const std::vector<double> expected = ReferenceRmsNorm(x, weight, 1e-6);
    for (size_t i = 0; i < y.size(); ++i) {
      EXPECT_NEAR(y[i], expected[i], 1e-6 * std::abs(expected[i])) << cols;
    }
  }
}

TEST_P(ElementwiseTest, RmsNormMayBeInPlaceAndARowStandsAlone) {
  RandomValues random(2);
  const std::vector<float> weight = random.Normals(33);
  const std::vector<float> x = random.Normals(7 * 33);
  std::vector<float> all = x;
  RmsNorm(context(), View(all, 7), weight.data(), 1e-6f, View(all, 7));
  for (int r = 0; r < 7; ++r) {
    const std::vector<float> row(x.begin() + r * 33, x.begin() + r * 33 + 33);
    std::vector<float> y(33);
    RmsNorm(context(), View(row, 1), weight.data(), 1e-6f, View(y, 1));
    EXPECT_EQ(BitsOfValues(y),
              BitsOfValues({all.begin() + r * 33, all.begin() + r * 33 + 33}));
  }
}

TEST_P(ElementwiseTest, RmsNormOfZerosIsZeroAndOfDenormalsIsNot) {
  std::vector<float> x(16, 0);
  const std::vector<float> weight(16, 1);
  RmsNorm(context(), View(x, 1), weight.data(), 1e-6f, View(x, 1));
  EXPECT_EQ(x, std::vector<float>(16, 0));
  x.assign(16, 1e-39f);
  RmsNorm(context(), View(x, 1), weight.data(), 1e-6f, View(x, 1));
  EXPECT_NEAR(x[0], 1e-36f, 1e-39f);
}

TEST_P(ElementwiseTest, RopeTurnsPairsByTheAngleOfTheirPosition) {
  RandomValues random(3);
  for (int cols : {2, 8, 14, 16, 24, 34, 64, 96}) {
    std::vector<double> frequencies(static_cast<size_t>(cols / 2));
    for (size_t i = 0; i < frequencies.size(); ++i) {
      frequencies[i] = std::pow(10000.0, -2.0 * static_cast<double>(i) / cols);
    }
    std::vector<float> cos(static_cast<size_t>(50 * cols / 2));
    std::vector<float> sin(cos.size());
    FillRopeTables(frequencies, 1.0, View(cos, 50), View(sin, 50));
    const std::vector<int32_t> positions = {49, 0, 7};
    const std::vector<float> x = random.Normals(static_cast<size_t>(6 * cols));
    std::vector<float> y = x;
    ApplyRope(context(), View(y, 6), positions, 2,
              {View(cos, 50), View(sin, 50)});
    for (int r = 0; r < 6; ++r) {
      std::vector<double> angles = frequencies;
      for (double& angle : angles) {
        angle *= positions[static_cast<size_t>(r / 2)];
      }
      const std::vector<double> expected = ReferenceRope(
          {x.begin() + r * cols, x.begin() + (r + 1) * cols}, angles);
      for (int i = 0; i < cols; ++i) {
        EXPECT_NEAR(y[static_cast<size_t>(r * cols + i)],
                    expected[static_cast<size_t>(i)], 1e-6);
      }
    }
  }
}

TEST_P(ElementwiseTest, SiluMulAndAddAreCloseToTheReference) {
  RandomValues random(4);
  for (int cols : kSizes) {
    const std::vector<float> gate =
        random.Normals(static_cast<size_t>(cols), 6);
    const std::vector<float> up = random.Normals(static_cast<size_t>(cols));
    std::vector<float> y(gate.size());
    SiluMul(context(), View(gate, 1), View(up, 1), View(y, 1));
    std::vector<float> sum = gate;
    AddInPlace(context(), View(sum, 1), View(up, 1));
    for (size_t i = 0; i < y.size(); ++i) {
      const double expected = ReferenceSiluMul(gate[i], up[i]);
      EXPECT_NEAR(y[i], expected, 5e-7 * std::abs(expected) + 1e-30);
      EXPECT_EQ(sum[i], gate[i] + up[i]);
    }
  }
}

TEST_P(ElementwiseTest, SiluOfExtremesIsTheLimit) {
  std::vector<float> gate = {-1e30f, -200, 200, 1e30f};
  const std::vector<float> up(4, 1);
  SiluMul(context(), View(gate, 1), View(up, 1), View(gate, 1));
  EXPECT_EQ(gate, (std::vector<float>{-0.0f, -0.0f, 200, 1e30f}));
}

TEST_P(ElementwiseTest, AllWidthsAndThreadCountsGiveTheSameBits) {
  RandomValues random(5);
  constexpr int kRows = 301;
  constexpr int kCols = 130;
  const std::vector<float> x = random.Normals(kRows * kCols, 4);
  const std::vector<float> other = random.Normals(kRows * kCols);
  std::vector<double> frequencies(kCols / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = 1.0 / static_cast<double>(i + 1);
  }
  std::vector<float> cos(500 * kCols / 2);
  std::vector<float> sin(cos.size());
  FillRopeTables(frequencies, 1.25, View(cos, 500), View(sin, 500));
  std::vector<int32_t> positions(kRows);
  for (int32_t& position : positions) position = random.Below(500);

  const auto run = [&](const CpuContext& context) {
    std::vector<float> y = x;
    RmsNorm(context, View(x, kRows), other.data(), 1e-5f, View(y, kRows));
    ApplyRope(context, View(y, kRows), positions, 1,
              {View(cos, 500), View(sin, 500)});
    SiluMul(context, View(y, kRows), View(other, kRows), View(y, kRows));
    AddInPlace(context, View(y, kRows), View(x, kRows));
    return BitsOfValues(y);
  };
  const std::vector<uint32_t> expected = run({});
  EXPECT_EQ(run(context()), expected);
  for (int num_threads : {2, 3}) {
    ThreadPool pool({.num_threads = num_threads});
    EXPECT_EQ(run({.isa = GetParam(), .threads = &pool}), expected);
  }
}

TEST_P(ElementwiseTest, NoRowsAreNoWork) {
  ApplyRope(context(), {nullptr, 0, 4, 4}, {}, 3,
            {{nullptr, 0, 2, 2}, {nullptr, 0, 2, 2}});
  RmsNorm(context(), {nullptr, 0, 4, 4}, nullptr, 1e-6f, {nullptr, 0, 4, 4});
  SiluMul(context(), {nullptr, 0, 4, 4}, {nullptr, 0, 4, 4},
          {nullptr, 0, 4, 4});
}

INSTANTIATE_ISA_TEST(ElementwiseTest);

TEST(RopeTablesTest, AreCosAndSinRoundedOnceEvenForLongContexts) {
  const std::vector<double> frequencies = {1.0, 0.7310585786300049, 1e-4};
  constexpr int kPositions = 200000;
  std::vector<float> cos(kPositions * 3);
  std::vector<float> sin(kPositions * 3);
  FillRopeTables(frequencies, 1.0, View(cos, kPositions),
                 View(sin, kPositions));
  double worst = 0;  // In units of half a place of 1.0f.
  for (int p = 0; p < kPositions; ++p) {
    for (int i = 0; i < 3; ++i) {
      const size_t at = static_cast<size_t>(p * 3 + i);
      const double angle = p * frequencies[static_cast<size_t>(i)];
      worst = std::max(worst, std::abs(cos[at] - std::cos(angle)) * 0x1p25);
      worst = std::max(worst, std::abs(sin[at] - std::sin(angle)) * 0x1p25);
    }
  }
  RecordProperty("worst_half_places", std::to_string(worst));
  EXPECT_LE(worst, 1.0000001);
}

TEST(RopeTablesTest, CarryTheAmplitude) {
  float cos = 0;
  float sin = 0;
  FillRopeTables(std::vector<double>{0.0}, 1.5, Dense(&cos, 1, 1),
                 Dense(&sin, 1, 1));
  EXPECT_EQ(cos, 1.5f);
  EXPECT_EQ(sin, 0.0f);
}

}  // namespace
}  // namespace baton
