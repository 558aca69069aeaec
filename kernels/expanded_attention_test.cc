#include "kernels/expanded_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/isa_test.h"
#include "kernels/reference/random_values.h"
#include "kernels/thread_pool.h"

namespace baton {
namespace {

struct Shape {
  int heads, latent, nope, rope, v, tokens;
};

constexpr Shape kShapes[] = {
    {1, 1, 1, 2, 1, 3},     {4, 64, 32, 16, 32, 130},   {3, 37, 20, 6, 24, 200},
    {5, 20, 12, 10, 7, 64}, {2, 512, 128, 64, 128, 70}, {1, 16, 130, 4, 70, 65},
};
constexpr float kScale = 0.3f;
constexpr uint32_t kBlocks[] = {2, 0, 3, 1};

// A sequence's cache and weights, and queries at all of its positions.
class Problem {
 public:
  Problem(const Shape& shape, CacheDtype dtype) : s_(shape), dtype_(dtype) {
    RandomValues random(7);
    const size_t n = static_cast<size_t>(s_.tokens);
    const size_t heads = static_cast<size_t>(s_.heads);
    latent_ = random.Normals(n * static_cast<size_t>(s_.latent));
    rope_ = random.Normals(n * static_cast<size_t>(s_.rope));
    q_ = random.Normals(n * heads * static_cast<size_t>(s_.nope + s_.rope),
                        0.5f);
    for (int h = 0; h < s_.heads; ++h) {
      const float scale = 1 / std::sqrt(static_cast<float>(s_.latent));
      uk_.push_back(random.Normals(
          static_cast<size_t>(s_.nope) * static_cast<size_t>(s_.latent),
          scale));
      uv_.push_back(random.Normals(
          static_cast<size_t>(s_.v) * static_cast<size_t>(s_.latent), scale));
      key_up_.push_back(PackedWeight::FromF32(uk_.back().data(), s_.nope,
                                              s_.latent, s_.latent));
      value_up_.push_back(
          PackedWeight::FromF32(uv_.back().data(), s_.v, s_.latent, s_.latent));
    }
    const size_t value = dtype == CacheDtype::kF32 ? 4 : 2;
    const size_t block = 64 * static_cast<size_t>(s_.latent + s_.rope) * value;
    pool_.assign(4 * block, std::byte{0xff});  // NaN
    cache_ = {.pool = pool_.data(),
              .block_bytes = block,
              .layer_offset_bytes = 0,
              .latent_dim = s_.latent,
              .rope_dim = s_.rope,
              .dtype = dtype};
    Write(0, s_.tokens);
  }

  int tokens() const { return s_.tokens; }
  size_t row_size() const { return static_cast<size_t>(s_.heads * s_.v); }

  void Write(int begin, int end) {
    std::vector<int32_t> positions(static_cast<size_t>(end - begin));
    std::iota(positions.begin(), positions.end(), begin);
    const std::vector<const uint32_t*> tables(positions.size(), kBlocks);
    WriteLatentCache({}, {positions, tables},
                     Dense<const float>(latent_.data() + begin * s_.latent,
                                        end - begin, s_.latent),
                     Dense<const float>(rope_.data() + begin * s_.rope,
                                        end - begin, s_.rope),
                     cache_);
  }
  void Spoil(int begin, int end) {
    const std::vector<float> latent = latent_;
    const std::vector<float> rope = rope_;
    std::ranges::fill(latent_, std::nanf(""));
    std::ranges::fill(rope_, std::nanf(""));
    Write(begin, end);
    latent_ = latent;
    rope_ = rope;
  }

  // Of the positions given, all in one call.
  std::vector<float> Attend(const CpuContext& context,
                            const std::vector<int32_t>& positions,
                            int first_position = 0) const {
    const int rows = static_cast<int>(positions.size());
    const int width = s_.nope + s_.rope;
    std::vector<float> q;
    for (const int32_t p : positions) {
      const auto from = q_.begin() + ptrdiff_t{p} * s_.heads * width;
      q.insert(q.end(), from, from + ptrdiff_t{s_.heads} * width);
    }
    const std::vector<const uint32_t*> tables(positions.size(), kBlocks);
    std::vector<float> output(positions.size() * row_size(), 9);
    ExpandedAttention(
        context,
        {.rows = {positions, tables},
         .first_position = first_position,
         .num_heads = s_.heads,
         .scale = kScale,
         .q_nope = {q.data(), rows * s_.heads, s_.nope, width},
         .q_rope = {q.data() + s_.nope, rows * s_.heads, s_.rope, width},
         .key_up = key_up_,
         .value_up = value_up_,
         .output = Dense(output.data(), rows * s_.heads, s_.v)},
        cache_);
    return output;
  }

  // In double, of one head at position p; the cache's values are `Stored`.
  std::vector<double> Expected(int p, int head, int first_position) const {
    const int width = s_.nope + s_.rope;
    const float* q = q_.data() + (ptrdiff_t{p} * s_.heads + head) * width;
    std::vector<double> scores;
    for (int t = first_position; t <= p; ++t) {
      double dot = 0;
      for (int d = 0; d < s_.nope; ++d) dot += q[d] * Up(uk_[head], d, t);
      for (int d = 0; d < s_.rope; ++d) {
        dot += double{q[s_.nope + d]} * Stored(rope_[t * s_.rope + d]);
      }
      scores.push_back(kScale * dot);
    }
    const double max = *std::ranges::max_element(scores);
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - max);
    std::vector<double> output(static_cast<size_t>(s_.v));
    for (int d = 0; d < s_.v; ++d) {
      for (int t = first_position; t <= p; ++t) {
        output[d] += scores[t - first_position] / sum * Up(uv_[head], d, t);
      }
    }
    return output;
  }

 private:
  double Up(const std::vector<float>& weight, int row, int t) const {
    double dot = 0;
    for (int i = 0; i < s_.latent; ++i) {
      dot += double{weight[row * s_.latent + i]} *
             Stored(latent_[t * s_.latent + i]);
    }
    return dot;
  }
  float Stored(float value) const {
    if (dtype_ == CacheDtype::kF32) return value;
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) &
                                0xffff0000u);
  }

  const Shape s_;
  const CacheDtype dtype_;
  std::vector<float> latent_, rope_, q_;
  std::vector<std::vector<float>> uk_, uv_;
  std::vector<PackedWeight> key_up_, value_up_;
  std::vector<std::byte> pool_;
  LatentCache cache_;
};

std::vector<int32_t> Positions(int begin, int end) {
  std::vector<int32_t> positions(static_cast<size_t>(end - begin));
  std::iota(positions.begin(), positions.end(), begin);
  return positions;
}

class ExpandedAttentionTest : public IsaTest {
 protected:
  static void ExpectClose(const Shape& s, const Problem& problem, int first,
                          const std::vector<float>& output) {
    for (int p = first; p < s.tokens; p += p + 10 < s.tokens ? 9 : 1) {
      for (int h = 0; h < s.heads; ++h) {
        const std::vector<double> expected = problem.Expected(p, h, first);
        for (int d = 0; d < s.v; ++d) {
          ASSERT_NEAR(output[((p - first) * s.heads + h) * s.v + d],
                      expected[d], 3e-5)
              << p << " " << h << " " << d;
        }
      }
    }
  }
};

TEST_P(ExpandedAttentionTest, IsCloseToTheReference) {
  for (const CacheDtype dtype : {CacheDtype::kF32, CacheDtype::kBf16}) {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(testing::Message()
                   << s.heads << " heads, latent " << s.latent);
      const Problem problem(s, dtype);
      ExpectClose(s, problem, 0,
                  problem.Attend(context(), Positions(0, s.tokens)));
    }
  }
}

TEST_P(ExpandedAttentionTest, ARowAloneEqualsTheRowInAnyChunk) {
  for (const CacheDtype dtype : {CacheDtype::kF32, CacheDtype::kBf16}) {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(testing::Message()
                   << s.heads << " heads, latent " << s.latent);
      const Problem problem(s, dtype);
      const std::vector<uint32_t> all =
          BitsOfValues(problem.Attend(context(), Positions(0, s.tokens)));
      const auto in_chunks_of = [&](int chunk) {
        std::vector<float> chunks;
        for (int p = 0; p < s.tokens; p += chunk) {
          const std::vector<float> part = problem.Attend(
              context(), Positions(p, std::min(p + chunk, s.tokens)));
          chunks.insert(chunks.end(), part.begin(), part.end());
        }
        return BitsOfValues(chunks);
      };
      for (const int chunk : {1, 7, 64, 65}) {
        EXPECT_EQ(in_chunks_of(chunk), all) << chunk;
      }
    }
  }
}

TEST_P(ExpandedAttentionTest, RowsMayComeInAnyOrder) {
  const Shape s = {2, 37, 20, 6, 24, 140};
  const Problem problem(s, CacheDtype::kBf16);
  const std::vector<int32_t> positions = {139, 3, 64, 64, 63, 127, 128};
  std::vector<float> alone;
  for (const int32_t p : positions) {
    const std::vector<float> row = problem.Attend(context(), {p});
    alone.insert(alone.end(), row.begin(), row.end());
  }
  EXPECT_EQ(BitsOfValues(problem.Attend(context(), positions)),
            BitsOfValues(alone));
}

TEST_P(ExpandedAttentionTest, AllWidthsAndThreadCountsGiveTheSameBits) {
  ThreadPool two({.num_threads = 2});
  ThreadPool five({.num_threads = 5});  // More than some have heads.
  for (const CacheDtype dtype : {CacheDtype::kF32, CacheDtype::kBf16}) {
    for (const Shape& s : kShapes) {
      const Problem problem(s, dtype);
      const auto bits = [&](const CpuContext& with) {
        return BitsOfValues(problem.Attend(with, Positions(0, s.tokens)));
      };
      const std::vector<uint32_t> expected = bits({});
      EXPECT_EQ(bits(context()), expected);
      EXPECT_EQ(bits({.isa = GetParam(), .threads = &two}), expected);
      EXPECT_EQ(bits({.isa = GetParam(), .threads = &five}), expected);
    }
  }
}

TEST_P(ExpandedAttentionTest, NeverReadsKeysThatAreNotVisible) {
  const Shape s = {3, 24, 12, 6, 10, 200};
  for (const CacheDtype dtype : {CacheDtype::kF32, CacheDtype::kBf16}) {
    Problem problem(s, dtype);
    const std::vector<uint32_t> before =
        BitsOfValues(problem.Attend(context(), Positions(60, 100)));
    problem.Spoil(100, 200);
    EXPECT_EQ(BitsOfValues(problem.Attend(context(), Positions(60, 100))),
              before);
    // Nor do they reach a row whose neighbour does see them.
    std::vector<float> mixed = problem.Attend(context(), Positions(60, 101));
    EXPECT_TRUE(std::isnan(mixed.back()));
    mixed.resize(40 * problem.row_size());
    EXPECT_EQ(BitsOfValues(mixed), before);
  }
}

// As if the first keys were not there; they are NaN.
TEST_P(ExpandedAttentionTest, KeysBeforeTheFirstPositionDoNotCount) {
  const Shape s = {3, 24, 12, 6, 10, 135};
  for (const CacheDtype dtype : {CacheDtype::kF32, CacheDtype::kBf16}) {
    for (const int first : {1, 17, 63, 64, 65, 130}) {
      SCOPED_TRACE(first);
      Problem problem(s, dtype);
      problem.Spoil(0, first);
      const std::vector<float> all =
          problem.Attend(context(), Positions(first, s.tokens), first);
      ExpectClose(s, problem, first, all);
      const std::vector<float> last =
          problem.Attend(context(), {s.tokens - 1}, first);
      EXPECT_EQ(BitsOfValues(last),
                BitsOfValues({all.end() - static_cast<ptrdiff_t>(last.size()),
                              all.end()}));
    }
  }
}

TEST_P(ExpandedAttentionTest, NoRowsAreNoWork) {
  const Problem problem({2, 16, 8, 4, 8, 1}, CacheDtype::kF32);
  EXPECT_TRUE(problem.Attend(context(), {}).empty());
}

INSTANTIATE_ISA_TEST(ExpandedAttentionTest);

}  // namespace
}  // namespace baton
