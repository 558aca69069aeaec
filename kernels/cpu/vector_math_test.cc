#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"
#include "kernels/cpu/vector_probe.h"
#include "kernels/reference/isa_test.h"
#include "kernels/reference/random_values.h"

namespace baton {
namespace {

using Lanes = std::array<float, 16>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The distance of a float from the true value, in units in its last place.
double UlpError(float value, double exact) {
  const float near = static_cast<float>(std::abs(exact));
  const double ulp = std::max(
      static_cast<double>(std::nextafter(near, kInfinity)) - near, 0x1p-149);
  return std::abs(value - exact) / ulp;
}

class VectorMathTest : public IsaTest {
 protected:
  const VectorProbe& probe() const { return VectorProbeFor(GetParam()); }

  // The worst error of `function` over values of `argument(i)`, which must also
  // have the array's bits.
  template <typename Argument>
  double WorstUlps(void (*VectorProbe::*function)(float*),
                   double (*exact)(double), int count,
                   const Argument& argument) const {
    double worst = 0;
    for (int i = 0; i < count; i += 16) {
      Lanes x, y;
      for (int j = 0; j < 16; ++j) x[j] = argument(i + j);
      y = x;
      (probe().*function)(y.data());
      Lanes expected = x;
      (VectorProbeFor(VectorIsa::kArray).*function)(expected.data());
      for (int j = 0; j < 16; ++j) {
        worst = std::max(worst, UlpError(y[j], exact(x[j])));
        EXPECT_EQ(std::bit_cast<uint32_t>(y[j]),
                  std::bit_cast<uint32_t>(expected[j]))
            << x[j];
      }
    }
    return worst;
  }
};

TEST_P(VectorMathTest, ExpIsWithinTwoPlaces) {
  const double worst = WorstUlps(
      &VectorProbe::exp, std::exp, 2000000,
      [](int i) { return static_cast<float>(-87.33 + 175.7 * i / 2000000); });
  std::printf("exp: at most %.3f ulp\n", worst);
  EXPECT_LE(worst, 2);
}

TEST_P(VectorMathTest, LogIsWithinTwoPlaces) {
  // All exponents, and densely about 1, where it is hard.
  const double all = WorstUlps(&VectorProbe::log, std::log, 1 << 21, [](int i) {
    return std::bit_cast<float>(static_cast<uint32_t>(i) * 1020u + 1);
  });
  const double near_one = WorstUlps(
      &VectorProbe::log, std::log, 1 << 20,
      [](int i) { return static_cast<float>(0.5 + 1.5 * i / (1 << 20)); });
  std::printf("log: at most %.3f ulp, near 1 %.3f\n", all, near_one);
  EXPECT_LE(all, 2);
  EXPECT_LE(near_one, 2);
}

TEST_P(VectorMathTest, Log1pIsWithinThreePlaces) {
  RandomValues random(3);
  const double worst =
      WorstUlps(&VectorProbe::log1p, std::log1p, 1 << 20, [&](int i) {
        const double v = random.Uniform();
        return static_cast<float>(
            -std::min(i % 2 == 0 ? v : std::pow(2.0, -33 * v), 1 - 0x1p-24));
      });
  std::printf("log1p: at most %.3f ulp\n", worst);
  EXPECT_LE(worst, 3);
}

TEST_P(VectorMathTest, ExpHasTheRightLimits) {
  Lanes x = {0,       -0.0f,  88.38f,     1e30f,        kInfinity,
             -87.34f, -1e30f, -kInfinity, -87.33f,      88.37f,
             1,       -1,     -FLT_MIN,   std::nanf("")};
  const Lanes from = x;
  probe().exp(x.data());
  EXPECT_EQ(x[0], 1);
  EXPECT_EQ(x[1], 1);
  for (int i : {2, 3, 4}) EXPECT_EQ(x[i], kInfinity) << from[i];
  for (int i : {5, 6, 7}) EXPECT_EQ(x[i], 0) << from[i];
  for (int i : {8, 9}) EXPECT_TRUE(std::isnormal(x[i])) << from[i];
  EXPECT_EQ(x[12], 1);
  EXPECT_TRUE(std::isnan(x[13]));
}

TEST_P(VectorMathTest, LogOfOneIsZeroAndDenormalsCount) {
  Lanes x;
  x.fill(1);
  x[1] = 0x1p-149f;
  x[2] = 0x1p-130f;
  probe().log(x.data());
  EXPECT_EQ(x[0], 0);
  EXPECT_NEAR(x[1], -149 * std::log(2.0), 1e-5);
  EXPECT_NEAR(x[2], -130 * std::log(2.0), 1e-5);
}

TEST_P(VectorMathTest, GumbelSpansItsRangeAndIsFiniteForEveryWord) {
  std::array<uint32_t, 16> words = {
      0,          1,          127,        128,        0x7fffffff, 0x80000000,
      0xffffff00, 0xffffff7f, 0xffffff80, 0xfffffffe, 0xffffffff};
  Lanes g;
  probe().gumbel(words.data(), g.data());
  EXPECT_NEAR(g[0], 22.87, 0.01);
  EXPECT_NEAR(g[10], -2.81, 0.01);
  RandomValues random(5);
  for (int i = 0; i < 20000; ++i) {
    for (uint32_t& word : words) word = static_cast<uint32_t>(random.Next());
    Lanes expected;
    probe().gumbel(words.data(), g.data());
    VectorProbeFor(VectorIsa::kArray).gumbel(words.data(), expected.data());
    using Bits = std::array<uint32_t, 16>;
    EXPECT_EQ(std::bit_cast<Bits>(g), std::bit_cast<Bits>(expected));
    const double u = (words[0] + 0.5) * 0x1p-32;
    EXPECT_NEAR(g[0], -std::log(-std::log1p(-u)), 1e-5 + 1e-7 / (1 - u));
  }
}

INSTANTIATE_ISA_TEST(VectorMathTest);

}  // namespace
}  // namespace baton
