#include "kernels/linear.h"

#include <unistd.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/reference/isa_test.h"
#include "kernels/reference/linear_reference.h"
#include "kernels/reference/random_values.h"
#include "kernels/thread_pool.h"

namespace baton {
namespace {

struct Shape {
  int rows, in, out;
};

// Every size that a tile, a panel or a block could get wrong, and some at
// random.
std::vector<Shape> Shapes() {
  const int sizes[] = {1, 15, 16, 17, 24, 33, 96, 513, 1025};
  std::vector<Shape> shapes = {{0, 16, 16}, {3, 0, 20}, {1, 192, 0}};
  for (int in : sizes) {
    shapes.push_back({1, in, 96});
    shapes.push_back({7, in, 33});
  }
  for (int out : {1, 15, 16, 17, 24, 33, 96, 129, 257}) {
    shapes.push_back({1, 192, out});
    shapes.push_back({4, 33, out});
  }
  for (int rows = 1; rows <= 26; ++rows) shapes.push_back({rows, 24, 80});
  shapes.push_back({97, 24, 144});
  RandomValues random(7);
  for (int i = 0; i < 20; ++i) {
    shapes.push_back(
        {1 + random.Below(60), 1 + random.Below(600), 1 + random.Below(200)});
  }
  return shapes;
}

std::vector<uint16_t> HighHalves(const std::vector<float>& values) {
  std::vector<uint16_t> halves(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    halves[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
  }
  return halves;
}

// Keeps what a bf16 can hold.
void CutToBf16(std::vector<float>& values) {
  for (float& value : values) {
    value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000u);
  }
}

class LinearTest : public IsaTest {
 protected:
  // Inputs and weights of a shape; weights that bf16 can hold.
  void Fill(const Shape& shape, uint64_t seed) {
    shape_ = shape;
    RandomValues random(seed);
    x_ = random.Normals(static_cast<size_t>(shape.rows) * shape.in);
    weight_ = random.Normals(static_cast<size_t>(shape.out) * shape.in);
    CutToBf16(weight_);
  }

  MatrixView<const float> x() const {
    return Dense<const float>(x_.data(), shape_.rows, shape_.in);
  }
  PackedWeight F32() const {
    return PackedWeight::FromF32(weight_.data(), shape_.out, shape_.in,
                                 shape_.in);
  }
  PackedWeight Bf16() const {
    return PackedWeight::FromBf16(HighHalves(weight_).data(), shape_.out,
                                  shape_.in, shape_.in);
  }
  std::vector<float> Run(const CpuContext& context,
                         const PackedWeight& weight) const {
    std::vector<float> y(static_cast<size_t>(shape_.rows) * shape_.out, -1);
    Linear(context, {x(), &weight, Dense(y.data(), shape_.rows, shape_.out)});
    return y;
  }
  std::vector<float> Reference() const {
    std::vector<float> y(static_cast<size_t>(shape_.rows) * shape_.out, -1);
    ReferenceLinear(x(), Dense(weight_.data(), shape_.out, shape_.in),
                    Dense(y.data(), shape_.rows, shape_.out));
    return y;
  }

  Shape shape_;
  std::vector<float> x_;
  std::vector<float> weight_;
};

TEST_P(LinearTest, EqualsTheDefinitionBitForBit) {
  uint64_t seed = 1;
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(testing::Message()
                 << shape.rows << " x " << shape.in << " x " << shape.out);
    Fill(shape, seed++);
    const std::vector<uint32_t> expected = BitsOfValues(Reference());
    EXPECT_EQ(BitsOfValues(Run(context(), F32())), expected);
    EXPECT_EQ(BitsOfValues(Run(context(), Bf16())), expected);
  }
}

TEST_P(LinearTest, IsCloseToTheProductInDoublePrecision) {
  Fill({3, 1025, 40}, 11);
  const std::vector<float> y = Run(context(), F32());
  for (int r = 0; r < 3; ++r) {
    for (int o = 0; o < 40; ++o) {
      EXPECT_NEAR(
          y[static_cast<size_t>(r * 40 + o)],
          ReferenceDot(x_.data() + r * 1025, weight_.data() + o * 1025, 1025),
          1e-4);
    }
  }
}

TEST_P(LinearTest, ARowAloneEqualsTheRowInABatch) {
  Fill({29, 600, 70}, 12);
  const PackedWeight weight = F32();
  const std::vector<float> all = Run(context(), weight);
  for (int r = 0; r < 29; ++r) {
    std::vector<float> y(70);
    Linear(context(), {Dense<const float>(x_.data() + r * 600, 1, 600), &weight,
                       Dense(y.data(), 1, 70)});
    EXPECT_EQ(BitsOfValues(y),
              BitsOfValues({all.begin() + r * 70, all.begin() + r * 70 + 70}));
  }
}

TEST_P(LinearTest, ThreadsAndBatchesDoNotChangeBits) {
  Fill({50, 96, 300}, 13);
  const PackedWeight weight = F32();
  const std::vector<float> expected = Run(context(), weight);
  for (int num_threads : {2, 3}) {
    ThreadPool pool({.num_threads = num_threads});
    const CpuContext context = {.isa = GetParam(), .threads = &pool};
    EXPECT_EQ(BitsOfValues(Run(context, weight)), BitsOfValues(expected));
    // One task a row and a few empty ones, more than one fork takes.
    std::vector<std::vector<float>> y(600, std::vector<float>(300));
    std::vector<LinearTask> tasks;
    tasks.reserve(y.size());
    for (int i = 0; i < 600; ++i) {
      tasks.push_back(
          {Dense<const float>(x_.data() + i % 50 * 96, i % 7 == 0 ? 0 : 1, 96),
           &weight,
           Dense(y[static_cast<size_t>(i)].data(), i % 7 == 0 ? 0 : 1, 300)});
    }
    LinearBatch(context, tasks);
    for (int i = 0; i < 600; ++i) {
      const auto row = expected.begin() + i % 50 * 300;
      EXPECT_EQ(BitsOfValues(y[static_cast<size_t>(i)]),
                BitsOfValues(i % 7 == 0 ? std::vector<float>(300)
                                        : std::vector<float>(row, row + 300)));
    }
  }
}

TEST_P(LinearTest, LeavesWhatLiesBetweenRowsAlone) {
  Fill({5, 33, 20}, 14);
  std::vector<float> wide_x(5 * 40, std::nanf(""));
  for (int r = 0; r < 5; ++r) {
    std::copy_n(x_.begin() + r * 33, 33, wide_x.begin() + r * 40);
  }
  std::vector<float> y(5 * 29, 7);
  const PackedWeight weight = F32();
  Linear(context(),
         {{wide_x.data(), 5, 33, 40}, &weight, {y.data(), 5, 20, 29}});
  const std::vector<float> expected = Reference();
  for (int r = 0; r < 5; ++r) {
    for (int o = 0; o < 29; ++o) {
      EXPECT_EQ(y[static_cast<size_t>(r * 29 + o)],
                o < 20 ? expected[static_cast<size_t>(r * 20 + o)] : 7);
    }
  }
}

TEST_P(LinearTest, KeepsDenormals) {
  Fill({1, 16, 16}, 15);
  x_.assign(16, 0);
  x_[3] = 1e-20f;
  weight_.assign(256, 0x1p-66f);
  const std::vector<float> y = Run(context(), F32());
  EXPECT_EQ(std::fpclassify(y[0]), FP_SUBNORMAL);
  EXPECT_EQ(BitsOfValues(y), BitsOfValues(Reference()));
  EXPECT_EQ(BitsOfValues(Run(context(), Bf16())), BitsOfValues(Reference()));
}

TEST_P(LinearTest, ANanStaysInItsRow) {
  Fill({6, 64, 48}, 16);
  const std::vector<float> clean = Run(context(), F32());
  x_[2 * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> y = Run(context(), F32());
  for (int i = 0; i < 6 * 48; ++i) {
    const size_t at = static_cast<size_t>(i);
    if (i / 48 == 2) {
      EXPECT_TRUE(std::isnan(y[at]));
    } else {
      EXPECT_EQ(y[at], clean[at]);
    }
  }
}

INSTANTIATE_ISA_TEST(LinearTest);

TEST(PackedWeightTest, TakesHalfTheBytesInBf16) {
  const std::vector<float> weight(40 * 64, 1);
  const PackedWeight f32 = PackedWeight::FromF32(weight.data(), 40, 64, 64);
  const PackedWeight bf16 =
      PackedWeight::FromBf16(HighHalves(weight).data(), 40, 64, 64);
  EXPECT_EQ(f32.size_bytes(), 3u * 16 * 64 * 4);
  EXPECT_EQ(bf16.size_bytes(), f32.size_bytes() / 2);
  EXPECT_EQ(PackedWeight::SizeBytes(40, 64, WeightDtype::kF32),
            f32.size_bytes());
  EXPECT_EQ(PackedWeight::SizeBytes(40, 63, WeightDtype::kBf16),
            bf16.size_bytes());
}

// Of this process, in memory now.
int64_t ResidentBytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(PackedWeightTest, ALargeOneGivesItsMemoryBackAtOnce) {
  const int out = 1000, in = 1111;
  std::vector<float> weight(out * in);
  std::iota(weight.begin(), weight.end(), 1.0f);
  std::vector<PackedWeight> packed;
  for (int i = 0; i < 8; ++i) {
    packed.push_back(PackedWeight::FromF32(weight.data(), out, in, in));
    const auto* const panels = static_cast<const float*>(packed[i].panels());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(panels) % (2 << 20), 0u);
    EXPECT_EQ(panels[1], weight[in]);
    // Of the last panel, which has places for eight outputs more.
    const float* const last =
        panels + packed[i].size_bytes() / sizeof(float) - 16;
    EXPECT_EQ(last[7], weight.back());
    EXPECT_EQ(last[8], 0);
  }
  const auto bytes = static_cast<int64_t>(packed[0].size_bytes());
  EXPECT_GT(bytes, 4 << 20);
  const int64_t before = ResidentBytes();
  for (const int i : {5, 2, 3}) packed[i] = PackedWeight();
  EXPECT_LE(ResidentBytes(), before - 3 * bytes + (1 << 20));
  EXPECT_EQ(static_cast<const float*>(packed[4].panels())[0], 1);
}

}  // namespace
}  // namespace baton
