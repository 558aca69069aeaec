// Linear with CpuContext::bf16_dots.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/linear.h"
#include "kernels/reference/isa_test.h"
#include "kernels/reference/random_values.h"
#include "kernels/thread_pool.h"

namespace baton {
namespace {

struct Shape {
  int rows, in, out;
};
constexpr Shape kShapes[] = {
    {1, 1, 1},     {1, 192, 96},  {7, 33, 33},    {3, 512, 17},  {2, 513, 40},
    {5, 1025, 16}, {49, 64, 144}, {26, 1030, 80}, {8, 128, 257}, {3, 0, 20},
};

float FromBf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// What a step of the definition takes and gives: no denormals.
float Flushed(float x) {
  return std::fabs(x) < std::numeric_limits<float>::min()
             ? std::copysign(0.f, x)
             : x;
}

// x y + z, rounded to 24 bits as if there were no least exponent, then flushed.
float FlushingFma(float x, float y, float z) {
  x = Flushed(x);
  y = Flushed(y);
  z = Flushed(z);
  const float plain = std::fma(x, y, z);
  if (!(std::fabs(plain) < 0x1p-100f)) return plain;
  // One of x and y can be scaled: a small result has small terms.
  const float scaled = std::fabs(x) < std::fabs(y)
                           ? std::fma(x * 0x1p64f, y, z * 0x1p64f)
                           : std::fma(x, y * 0x1p64f, z * 0x1p64f);
  if (std::fabs(scaled) < 0x1p-62f) return std::copysign(0.f, scaled);
  return plain;
}

// To nearest, ties to even, by search: the nearest of the two neighbours.
float NearestBf16(float x) {
  if (std::isnan(x)) return x;
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t below = bits & 0xffff0000u;
  const uint32_t rest = bits & 0xffffu;
  const bool up = rest > 0x8000u || (rest == 0x8000u && (below & 0x10000u));
  return std::bit_cast<float>(up ? below + 0x10000u : below);
}

struct Problem {
  Problem(const Shape& shape, uint64_t seed, float scale) : s(shape) {
    RandomValues random(seed);
    x = random.Normals(static_cast<size_t>(s.rows) * s.in, scale);
    weight.resize(static_cast<size_t>(s.out) * s.in);
    for (uint16_t& w : weight) {
      w = static_cast<uint16_t>(std::bit_cast<uint32_t>(random.Normal(scale)) >>
                                16);
    }
  }

  std::vector<float> Run(const CpuContext& context) const {
    const PackedWeight packed =
        PackedWeight::FromBf16(weight.data(), s.out, s.in, s.in);
    std::vector<float> y(static_cast<size_t>(s.rows) * s.out, -1);
    Linear(context, {Dense<const float>(x.data(), s.rows, s.in), &packed,
                     Dense(y.data(), s.rows, s.out)});
    return y;
  }

  float Defined(int row, int output) const {
    const float* a = x.data() + ptrdiff_t{row} * s.in;
    const uint16_t* b = weight.data() + ptrdiff_t{output} * s.in;
    float total = 0;
    for (int begin = 0; begin < s.in; begin += 512) {
      float sum = 0;
      for (int k = begin; k < std::min(begin + 512, s.in); k += 2) {
        const bool whole = k + 1 < s.in;
        sum = FlushingFma(whole ? NearestBf16(a[k + 1]) : 0,
                          whole ? FromBf16(b[k + 1]) : 0, sum);
        sum = FlushingFma(NearestBf16(a[k]), FromBf16(b[k]), sum);
      }
      total = begin == 0 ? sum : FlushingFma(1, total, sum);
    }
    return total;
  }

  Shape s;
  std::vector<float> x;
  std::vector<uint16_t> weight;
};

class Bf16DotsTest : public IsaTest {
 protected:
  CpuContext dots(Bf16Dots kind = Bf16Dots::kOn) const {
    return {.isa = GetParam(), .threads = nullptr, .bf16_dots = kind};
  }

  void ExpectAsDefined(const Problem& problem) const {
    std::vector<float> expected;
    for (int r = 0; r < problem.s.rows; ++r) {
      for (int o = 0; o < problem.s.out; ++o) {
        expected.push_back(problem.Defined(r, o));
      }
    }
    for (const Bf16Dots kind : {Bf16Dots::kOn, Bf16Dots::kEmulated}) {
      EXPECT_EQ(BitsOfValues(problem.Run(dots(kind))), BitsOfValues(expected))
          << problem.s.rows << " " << problem.s.in << " " << problem.s.out
          << (kind == Bf16Dots::kOn ? "" : " emulated");
    }
  }
};

TEST_P(Bf16DotsTest, GiveTheBitsOfTheDefinition) {
  for (const Shape& shape : kShapes) {
    ExpectAsDefined(Problem(shape, 3, 1));
    // Products about as small as the least normal number, and less.
    ExpectAsDefined(Problem(shape, 4, 0x1p-62f));
    ExpectAsDefined(Problem(shape, 5, 0x1p-64f));
  }
}

TEST_P(Bf16DotsTest, FlushWhatIsTinyBeforeItIsRounded) {
  Problem problem({1, 2, 1}, 1, 1);
  // 2^-126 (1 - 3/4 2^-24): float32 would round it up to 2^-126.
  problem.x = {-0x1.8p-75f, 0x1p-63f};
  problem.weight = {0x1a00, 0x2000};  // 2^-75, 2^-63
  EXPECT_EQ(FromBf16(0x1a00), 0x1p-75f);
  EXPECT_EQ(FromBf16(0x2000), 0x1p-63f);
  problem.x[0] = -0x1.8p-76f;
  EXPECT_EQ(std::fma(problem.x[0], 0x1p-75f, 0x1p-126f), 0x1p-126f);
  ExpectAsDefined(problem);
  EXPECT_EQ(problem.Run(dots())[0], 0.0f);
}

TEST_P(Bf16DotsTest, DenormalsCountAsZero) {
  Problem problem({1, 2, 1}, 1, 1);
  problem.x = {1e-39f, 1.0f};
  problem.weight = {0x7f00, 0x0040};  // Huge, and denormal.
  ExpectAsDefined(problem);
  EXPECT_EQ(problem.Run(dots())[0], 0.0f);
}

TEST_P(Bf16DotsTest, SpecialValuesStaySo) {
  for (const Bf16Dots kind : {Bf16Dots::kOn, Bf16Dots::kEmulated}) {
    Problem problem({1, 3, 1}, 1, 1);
    problem.weight = {0x3f80, 0x3f80, 0x3f80};
    problem.x = {1, std::bit_cast<float>(0x7fffffffu), 2};
    EXPECT_TRUE(std::isnan(problem.Run(dots(kind))[0]));
    problem.x = {1, 3.4e38f, 2};  // Rounds to infinity.
    EXPECT_TRUE(std::isinf(problem.Run(dots(kind))[0]));
    problem.x = {-0.0f, -0.0f, -0.0f};
    EXPECT_EQ(BitsOfValues(problem.Run(dots(kind))),
              BitsOfValues({problem.Defined(0, 0)}));
  }
}

TEST_P(Bf16DotsTest, ARowAloneEqualsTheRowInAnyBatchOnAnyThreads) {
  ThreadPool two({.num_threads = 2});
  for (const Shape& shape : kShapes) {
    const Problem problem(shape, 6, 1);
    const std::vector<float> all = problem.Run(dots());
    CpuContext threaded = dots();
    threaded.threads = &two;
    EXPECT_EQ(BitsOfValues(problem.Run(threaded)), BitsOfValues(all));
    for (int r = 0; r < shape.rows; r += 1 + shape.rows / 5) {
      Problem alone = problem;
      alone.s.rows = 1;
      const auto row = problem.x.begin() + ptrdiff_t{r} * shape.in;
      alone.x.assign(row, row + shape.in);
      const auto y = all.begin() + ptrdiff_t{r} * shape.out;
      EXPECT_EQ(BitsOfValues(alone.Run(dots())),
                BitsOfValues({y, y + shape.out}));
    }
  }
}

TEST_P(Bf16DotsTest, LeaveFloat32WeightsAlone) {
  const Problem problem({3, 100, 40}, 7, 1);
  std::vector<float> weight;
  for (const uint16_t bits : problem.weight) weight.push_back(FromBf16(bits));
  const PackedWeight packed =
      PackedWeight::FromF32(weight.data(), 40, 100, 100);
  std::vector<float> y(3 * 40);
  Linear(dots(), {Dense<const float>(problem.x.data(), 3, 100), &packed,
                  Dense(y.data(), 3, 40)});
  EXPECT_EQ(BitsOfValues(y), BitsOfValues(problem.Run(context())));
  EXPECT_NE(BitsOfValues(y), BitsOfValues(problem.Run(dots())));
}

INSTANTIATE_ISA_TEST(Bf16DotsTest);

}  // namespace
}  // namespace baton
