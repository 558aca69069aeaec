#include "kernels/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/reference/attention_reference.h"
#include "kernels/reference/isa_test.h"
#include "kernels/reference/random_values.h"
#include "kernels/thread_pool.h"

namespace baton {
namespace {

struct Shape {
  int heads, latent, rope, tokens;
};

float FromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Two layers of paged cache, filled with NaN; sequences take blocks in a
// shuffled order and write into the second layer.
class PagedCache {
 public:
  PagedCache(const Shape& shape, CacheDtype dtype, int num_blocks)
      : shape_(shape) {
    const size_t value = dtype == CacheDtype::kF32 ? 4 : 2;
    const size_t layer = static_cast<size_t>(kKvBlockTokens) *
                         static_cast<size_t>(shape.latent + shape.rope) * value;
    bytes_.assign(static_cast<size_t>(num_blocks) * 2 * layer, std::byte{0xff});
    cache_ = {.pool = bytes_.data(),
              .block_bytes = 2 * layer,
              .layer_offset_bytes = layer,
              .latent_dim = shape.latent,
              .rope_dim = shape.rope,
              .dtype = dtype};
    for (int i = num_blocks; i > 0; --i) {
      free_.push_back(static_cast<uint32_t>((i * 7) % num_blocks));
    }
  }

  std::vector<uint32_t> TakeBlocks(int tokens) {
    std::vector<uint32_t> table;
    for (int t = 0; t < tokens; t += kKvBlockTokens) {
      table.push_back(free_.back());
      free_.pop_back();
    }
    return table;
  }

  // The values of a position, as stored.
  std::vector<float> Row(const std::vector<uint32_t>& table,
                         int position) const {
    const size_t width = static_cast<size_t>(shape_.latent + shape_.rope);
    const size_t value = cache_.dtype == CacheDtype::kF32 ? 4 : 2;
    const std::byte* at =
        cache_.pool +
        table[static_cast<size_t>(position / kKvBlockTokens)] *
            cache_.block_bytes +
        cache_.layer_offset_bytes +
        static_cast<size_t>(position % kKvBlockTokens) * width * value;
    std::vector<float> row(width);
    for (size_t i = 0; i < width; ++i) {
      if (cache_.dtype == CacheDtype::kF32) {
        std::memcpy(&row[i], at + i * 4, 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, at + i * 2, 2);
        row[i] = FromBf16(bits);
      }
    }
    return row;
  }

  const LatentCache& cache() const { return cache_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  const Shape shape_;
  std::vector<std::byte> bytes_;
  LatentCache cache_;
  std::vector<uint32_t> free_;
};

// One sequence of random keys and queries for all of its positions.
struct Sequence {
  std::vector<uint32_t> table;
  std::vector<float> latent, rope, q_latent, q_rope;
  int first_position = 0;  // Of the keys that Attend reads.
};

class LatentAttentionTest : public IsaTest {
 protected:
  static constexpr float kScale = 0.4f;

  Sequence MakeSequence(const Shape& s, PagedCache& cache,
                        uint64_t seed) const {
    RandomValues random(seed);
    const size_t n = static_cast<size_t>(s.tokens);
    const size_t latent = static_cast<size_t>(s.latent);
    const size_t rope = static_cast<size_t>(s.rope);
    const size_t heads = static_cast<size_t>(s.heads);
    Sequence sequence = {cache.TakeBlocks(s.tokens),
                         random.Normals(n * latent),
                         random.Normals(n * rope),
                         random.Normals(n * heads * latent, 0.5f),
                         random.Normals(n * heads * rope, 0.5f),
                         0};
    std::vector<int32_t> positions(n);
    for (size_t i = 0; i < n; ++i) positions[i] = static_cast<int32_t>(i);
    const std::vector<const uint32_t*> tables(n, sequence.table.data());
    WriteLatentCache(
        context(), {positions, tables},
        Dense<const float>(sequence.latent.data(), s.tokens, s.latent),
        Dense<const float>(sequence.rope.data(), s.tokens, s.rope),
        cache.cache());
    return sequence;
  }

  struct PositionRange {
    int begin, end;
  };
  void Overwrite(const Shape& s, PagedCache& cache, const Sequence& sequence,
                 PositionRange range, float value) const {
    std::vector<int32_t> positions;
    for (int p = range.begin; p < range.end; ++p) positions.push_back(p);
    const int n = range.end - range.begin;
    const std::vector<const uint32_t*> tables(positions.size(),
                                              sequence.table.data());
    const std::vector<float> values(
        positions.size() * static_cast<size_t>(s.latent + s.rope), value);
    WriteLatentCache(context(), {positions, tables},
                     Dense<const float>(values.data(), n, s.latent),
                     Dense<const float>(values.data(), n, s.rope),
                     cache.cache());
  }

  // z [heads, latent] of `position` against the reference; `keys` are those
  // from the sequence's first position on.
  static void ExpectReference(const Shape& s, const Sequence& sequence,
                              int position, const std::vector<float>& keys,
                              const std::vector<float>& z) {
    for (int h = 0; h < s.heads; ++h) {
      const ptrdiff_t at = ptrdiff_t{position} * s.heads + h;
      const auto q = sequence.q_latent.begin() + at * s.latent;
      const auto r = sequence.q_rope.begin() + at * s.rope;
      const std::vector<double> expected = ReferenceLatentAttention(
          {q, q + s.latent}, {r, r + s.rope},
          Dense<const float>(keys.data(),
                             position + 1 - sequence.first_position,
                             s.latent + s.rope),
          kScale);
      for (int d = 0; d < s.latent; ++d) {
        ASSERT_NEAR(z[static_cast<size_t>(h * s.latent + d)],
                    expected[static_cast<size_t>(d)], 3e-5)
            << position << " " << h << " " << d;
      }
    }
  }

  // z of the positions given, all in one call.
  static std::vector<float> Attend(const CpuContext& context, const Shape& s,
                                   const PagedCache& cache,
                                   const Sequence& sequence,
                                   const std::vector<int32_t>& positions) {
    const int rows = static_cast<int>(positions.size());
    std::vector<float> q_latent, q_rope;
    for (int32_t p : positions) {
      const auto append = [&](std::vector<float>& to,
                              const std::vector<float>& from, int dims) {
        const auto begin = from.begin() + ptrdiff_t{p} * s.heads * dims;
        to.insert(to.end(), begin, begin + ptrdiff_t{s.heads} * dims);
      };
      append(q_latent, sequence.q_latent, s.latent);
      append(q_rope, sequence.q_rope, s.rope);
    }
    const std::vector<const uint32_t*> tables(positions.size(),
                                              sequence.table.data());
    std::vector<float> z(q_latent.size(), 9);
    LatentAttention(
        context,
        {.rows = {positions, tables},
         .first_position = sequence.first_position,
         .num_heads = s.heads,
         .scale = kScale,
         .q_latent =
             Dense<const float>(q_latent.data(), rows * s.heads, s.latent),
         .q_rope = Dense<const float>(q_rope.data(), rows * s.heads, s.rope),
         .z = Dense(z.data(), rows * s.heads, s.latent)},
        cache.cache());
    return z;
  }

  // Every ninth position of `z`, all of the sequence's, and the last.
  static void ExpectClose(const Shape& s, const PagedCache& cache,
                          const Sequence& sequence,
                          const std::vector<float>& z) {
    std::vector<float> keys;
    for (int p = 0; p < s.tokens; ++p) {
      const std::vector<float> row = cache.Row(sequence.table, p);
      keys.insert(keys.end(), row.begin(), row.end());
      if (p % 9 == 0 || p + 1 == s.tokens) {
        ExpectCloseAt(p, s, sequence, keys, z);
      }
    }
  }

  // Position p of `z`; `keys`: those up to p.
  static void ExpectCloseAt(int p, const Shape& s, const Sequence& sequence,
                            const std::vector<float>& keys,
                            const std::vector<float>& z) {
    for (int h = 0; h < s.heads; ++h) {
      const ptrdiff_t at = ptrdiff_t{p} * s.heads + h;
      const auto q = sequence.q_latent.begin() + at * s.latent;
      const auto r = sequence.q_rope.begin() + at * s.rope;
      const std::vector<double> expected = ReferenceLatentAttention(
          {q, q + s.latent}, {r, r + s.rope},
          Dense<const float>(keys.data(), p + 1, s.latent + s.rope), kScale);
      for (int d = 0; d < s.latent; ++d) {
        ASSERT_NEAR(z[static_cast<size_t>(at * s.latent + d)],
                    expected[static_cast<size_t>(d)], 3e-5)
            << p << " " << h << " " << d;
      }
    }
  }
};

std::vector<int32_t> AllPositions(const Shape& s) {
  std::vector<int32_t> positions(static_cast<size_t>(s.tokens));
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

constexpr Shape kShapes[] = {
    {1, 1, 2, 3},    {6, 64, 16, 130}, {4, 64, 16, 65}, {7, 24, 8, 64},
    {3, 17, 6, 130}, {5, 33, 10, 70},  {9, 96, 32, 66}, {65, 16, 4, 20},
    {130, 24, 8, 4}, {2, 512, 64, 66}, {2, 130, 0, 20},
};

TEST_P(LatentAttentionTest, IsCloseToTheReference) {
  for (CacheDtype dtype : {CacheDtype::kF32, CacheDtype::kBf16}) {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(testing::Message() << s.heads << " heads " << s.latent << "+"
                                      << s.rope << " tokens " << s.tokens);
      PagedCache cache(s, dtype, 8);
      const Sequence sequence = MakeSequence(s, cache, 3);
      const std::vector<float> z =
          Attend(context(), s, cache, sequence, AllPositions(s));
      std::vector<float> keys;
      for (int p = 0; p < s.tokens; ++p) {
        const std::vector<float> row = cache.Row(sequence.table, p);
        keys.insert(keys.end(), row.begin(), row.end());
        if (p % 9 != 0 && p + 1 != s.tokens) continue;
        const auto of_row = z.begin() + ptrdiff_t{p} * s.heads * s.latent;
        ExpectReference(s, sequence, p, keys,
                        {of_row, of_row + ptrdiff_t{s.heads} * s.latent});
      }
    }
  }
}

// Beyond each row lie NaNs, or later keys: if one were read, the row's bits
// would differ from those of the row alone in its block.
TEST_P(LatentAttentionTest, ARowAloneEqualsTheRowInAnyBatch) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(testing::Message() << s.heads << " heads " << s.latent);
    PagedCache cache(s, CacheDtype::kF32, 8);
    const Sequence sequence = MakeSequence(s, cache, 4);
    const size_t row_size = static_cast<size_t>(s.heads) * s.latent;
    const std::vector<uint32_t> all =
        BitsOfValues(Attend(context(), s, cache, sequence, AllPositions(s)));
    for (int p = 0; p < s.tokens; p += 1 + s.tokens / 20) {
      const std::vector<uint32_t> row(
          all.begin() + static_cast<ptrdiff_t>(row_size) * p,
          all.begin() + static_cast<ptrdiff_t>(row_size) * (p + 1));
      EXPECT_EQ(BitsOfValues(Attend(context(), s, cache, sequence, {p})), row);
      const std::vector<uint32_t> mixed = BitsOfValues(
          Attend(context(), s, cache, sequence, {s.tokens - 1, p, p / 2}));
      EXPECT_EQ(std::vector<uint32_t>(
                    mixed.begin() + static_cast<ptrdiff_t>(row_size),
                    mixed.begin() + static_cast<ptrdiff_t>(2 * row_size)),
                row);
    }
  }
}

TEST_P(LatentAttentionTest, NeverReadsKeysThatAreNotVisible) {
  const Shape s = {6, 64, 16, 200};
  PagedCache cache(s, CacheDtype::kF32, 8);
  const Sequence sequence = MakeSequence(s, cache, 5);
  const std::vector<float> before =
      Attend(context(), s, cache, sequence, {99, 64, 63});
  Overwrite(s, cache, sequence, {100, 200}, std::nanf(""));
  EXPECT_EQ(BitsOfValues(Attend(context(), s, cache, sequence, {99, 64, 63})),
            BitsOfValues(before));
  // Nor do they reach a row that shares its tile with one that does see them.
  const std::vector<float> z =
      Attend(context(), s, cache, sequence, {99, 100, 64, 63});
  EXPECT_EQ(BitsOfValues({z.begin(), z.begin() + 6 * 64}),
            BitsOfValues({before.begin(), before.begin() + 6 * 64}));
  EXPECT_TRUE(std::isnan(z[6 * 64]));
}

TEST_P(LatentAttentionTest, AllWidthsAndThreadCountsGiveTheSameBits) {
  ThreadPool two({.num_threads = 2});
  ThreadPool three({.num_threads = 3});
  for (CacheDtype dtype : {CacheDtype::kF32, CacheDtype::kBf16}) {
    for (const Shape& s : kShapes) {
      PagedCache cache(s, dtype, 8);
      const Sequence sequence = MakeSequence(s, cache, 6);
      std::vector<int32_t> rows;
      const auto bits = [&](const CpuContext& with) {
        return BitsOfValues(Attend(with, s, cache, sequence, rows));
      };
      for (const bool all : {true, false}) {
        rows = all ? AllPositions(s) : std::vector<int32_t>{s.tokens - 1};
        const std::vector<uint32_t> expected = bits({});
        EXPECT_EQ(bits(context()), expected);
        EXPECT_EQ(bits({.isa = GetParam(), .threads = &two}), expected);
        EXPECT_EQ(bits({.isa = GetParam(), .threads = &three}), expected);
      }
    }
  }
}

// As if the first keys were not there; they are NaN.
TEST_P(LatentAttentionTest, KeysBeforeTheFirstPositionDoNotCount) {
  const Shape s = {6, 24, 6, 135};
  for (CacheDtype dtype : {CacheDtype::kF32, CacheDtype::kBf16}) {
    for (const int first : {1, 17, 63, 64, 65, 130}) {
      SCOPED_TRACE(first);
      PagedCache cache(s, dtype, 8);
      Sequence sequence = MakeSequence(s, cache, 7);
      Overwrite(s, cache, sequence, {0, first}, std::nanf(""));
      sequence.first_position = first;
      std::vector<int32_t> positions;
      std::vector<float> keys;
      for (int p = first; p < s.tokens; ++p) {
        positions.push_back(p);
        const std::vector<float> row = cache.Row(sequence.table, p);
        keys.insert(keys.end(), row.begin(), row.end());
      }
      const std::vector<float> z =
          Attend(context(), s, cache, sequence, positions);
      EXPECT_EQ(BitsOfValues(z),
                BitsOfValues(Attend({}, s, cache, sequence, positions)));
      for (int i = 0; i < s.tokens - first; i += i < 3 ? 1 : 9) {
        const auto row = z.begin() + ptrdiff_t{i} * s.heads * s.latent;
        const std::vector<float> alone =
            Attend(context(), s, cache, sequence, {first + i});
        EXPECT_EQ(BitsOfValues(alone),
                  BitsOfValues({row, row + ptrdiff_t{s.heads} * s.latent}));
        ExpectReference(s, sequence, first + i, keys, alone);
      }
    }
  }
}

TEST_P(LatentAttentionTest, RowsOfSeveralSequencesKeepToTheirOwnBlocks) {
  const Shape s = {6, 64, 16, 100};
  PagedCache cache(s, CacheDtype::kF32, 8);
  std::vector<Sequence> sequences;
  for (uint64_t i = 0; i < 3; ++i) {
    sequences.push_back(MakeSequence(s, cache, 20 + i));
  }
  // Rows of the three in turn: position 99 of each, then 50 of each.
  const std::vector<int32_t> positions = {99, 99, 99, 50, 50, 50};
  std::vector<const uint32_t*> tables;
  std::vector<float> q_latent, q_rope, expected;
  for (size_t r = 0; r < 6; ++r) {
    const Sequence& sequence = sequences[r % 3];
    tables.push_back(sequence.table.data());
    const auto latent = sequence.q_latent.begin() + positions[r] * 6 * 64;
    const auto rope = sequence.q_rope.begin() + positions[r] * 6 * 16;
    q_latent.insert(q_latent.end(), latent, latent + 6 * 64);
    q_rope.insert(q_rope.end(), rope, rope + 6 * 16);
    const std::vector<float> row =
        Attend(context(), s, cache, sequence, {positions[r]});
    expected.insert(expected.end(), row.begin(), row.end());
  }
  std::vector<float> z(6 * 6 * 64);
  LatentAttention(context(),
                  {.rows = {positions, tables},
                   .num_heads = 6,
                   .scale = kScale,
                   .q_latent = Dense<const float>(q_latent.data(), 36, 64),
                   .q_rope = Dense<const float>(q_rope.data(), 36, 16),
                   .z = Dense(z.data(), 36, 64)},
                  cache.cache());
  EXPECT_EQ(BitsOfValues(z), BitsOfValues(expected));
}

TEST_P(LatentAttentionTest, HugeScoresStayFinite) {
  const Shape s = {1, 16, 2, 130};
  PagedCache cache(s, CacheDtype::kF32, 8);
  Sequence sequence = MakeSequence(s, cache, 8);
  for (float& q : sequence.q_latent) q *= 1e4f;
  for (float x : Attend(context(), s, cache, sequence, AllPositions(s))) {
    EXPECT_TRUE(std::isfinite(x));
  }
}

TEST_P(LatentAttentionTest, NoRowsAreNoWork) {
  const Shape s = {2, 16, 4, 1};
  PagedCache cache(s, CacheDtype::kF32, 1);
  EXPECT_TRUE(Attend(context(), s, cache, {}, {}).empty());
}

INSTANTIATE_ISA_TEST(LatentAttentionTest);

TEST(WriteLatentCacheTest, RoundsToBf16InIntegersAndKeepsDenormals) {
  const Shape s = {1, 8, 2, 1};
  PagedCache cache(s, CacheDtype::kBf16, 1);
  const std::vector<uint32_t> table = cache.TakeBlocks(1);
  // A tie down, a tie up, above a tie, and what overflows, is denormal, or is
  // not a number.
  const std::vector<float> latent = {std::bit_cast<float>(0x3f808000u),
                                     std::bit_cast<float>(0x3f818000u),
                                     std::bit_cast<float>(0x3f808001u),
                                     3.4e38f,
                                     1e-39f,
                                     -1e-39f,
                                     std::bit_cast<float>(0x7f800001u),
                                     -0.0f};
  const std::vector<float> rope = {1, std::numeric_limits<float>::infinity()};
  const int32_t position = 0;
  const uint32_t* tables = table.data();
  WriteLatentCache({}, {{&position, 1}, {&tables, 1}},
                   Dense<const float>(latent.data(), 1, 8),
                   Dense<const float>(rope.data(), 1, 2), cache.cache());
  const uint16_t expected[] = {0x3f80, 0x3f82, 0x3f81, 0x7f80, 0x000b,
                               0x800b, 0x7fc0, 0x8000, 0x3f80, 0x7f80};
  const std::vector<float> row = cache.Row(table, 0);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(row[i]) >> 16, expected[i]) << i;
  }
}

TEST(WriteLatentCacheTest, TouchesItsOwnRowsOnly) {
  const Shape s = {1, 16, 4, 70};
  PagedCache cache(s, CacheDtype::kF32, 4);
  const std::vector<uint32_t> table = cache.TakeBlocks(70);
  const std::vector<float> values(20, 2);
  const int32_t position = 65;
  const uint32_t* tables = table.data();
  WriteLatentCache({}, {{&position, 1}, {&tables, 1}},
                   Dense<const float>(values.data(), 1, 16),
                   Dense<const float>(values.data(), 1, 4), cache.cache());
  EXPECT_EQ(cache.Row(table, 65), values);
  const size_t touched = static_cast<size_t>(
      std::count_if(cache.bytes().begin(), cache.bytes().end(),
                    [](std::byte b) { return b != std::byte{0xff}; }));
  EXPECT_EQ(touched, 20 * sizeof(float));
}

}  // namespace
}  // namespace baton
