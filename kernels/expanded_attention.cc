#include "kernels/expanded_attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "base/logging.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/parallel_for.h"

namespace baton {
namespace {

// Rows [begin, end) of one sequence, at ascending positions.
struct Group {
  int begin;
  int end;
};

// Kept from call to call, so that steady state allocates nothing.
//   key := UK c (nope values), rope key, UV c (v values)
struct Scratch {
  std::vector<float> latents;  // [64, latent_dim], of a bf16 cache.
  std::vector<float> keys;     // [64, key]
  std::vector<float> kernel;
  std::vector<float> max;  // [rows], of the tiles so far; sum too.
  std::vector<float> sum;
};

void Reserve(std::vector<float>* values, size_t size) {
  if (values->size() < size) values->resize(size);
}

// One head over one group of rows.
class HeadAttention {
 public:
  HeadAttention(const CpuContext& context, const ExpandedAttentionArgs& args,
                const LatentCache& cache, int head, Scratch* scratch)
      : kernels_(KernelsFor(context.isa)),
        this_thread_{.isa = context.isa,
                     .threads = nullptr,
                     .bf16_dots = context.bf16_dots},
        args_(args),
        cache_(cache),
        head_(head),
        nope_(args.q_nope.cols),
        v_(args.output.cols),
        key_pitch_(nope_ + cache.rope_dim + v_),
        scratch_(*scratch) {}

  void Run(const Group& group) {
    Prepare(group.end - group.begin);
    const int32_t last = position(group.end - 1);
    int seeing = group.begin;  // The first row that sees the tile.
    int whole = group.begin;   // The first that sees all of it.
    const int first_tile = args_.first_position / kKvBlockTokens;
    for (int tile = first_tile; tile <= last / kKvBlockTokens; ++tile) {
      const int begin = tile * kKvBlockTokens;
      while (position(seeing) < begin) ++seeing;
      whole = std::max(whole, seeing);
      while (whole < group.end &&
             position(whole) < begin + kKvBlockTokens - 1) {
        ++whole;
      }
      ExpandTile(group.begin, tile, last);
      const bool is_first = tile == first_tile;
      AttendPart(group.begin, {seeing, whole}, tile, is_first);
      AttendWhole(group.begin, {whole, group.end}, tile, is_first);
    }
    for (int row = group.begin; row < group.end; ++row) {
      const float inverse =
          1.0f / scratch_.sum[static_cast<size_t>(row - group.begin)];
      float* output = args_.output.row(Pair(row));
      for (int i = 0; i < v_; ++i) output[i] *= inverse;
    }
  }

 private:
  int32_t position(int row) const {
    return args_.rows.positions[static_cast<size_t>(row)];
  }
  int Pair(int row) const { return row * args_.num_heads + head_; }

  void Prepare(int num_rows) {
    constexpr size_t kTokens = kKvBlockTokens;
    Reserve(&scratch_.latents,
            kTokens * static_cast<size_t>(cache_.latent_dim));
    Reserve(&scratch_.keys, kTokens * static_cast<size_t>(key_pitch_));
    Reserve(&scratch_.kernel, AttentionScratchFloats(nope_, cache_.rope_dim));
    Reserve(&scratch_.max, static_cast<size_t>(num_rows));
    Reserve(&scratch_.sum, static_cast<size_t>(num_rows));
  }

  // The tile's keys from the first one on that any row reads, up to `last`.
  void ExpandTile(int row, int tile, int32_t last) {
    const int first = std::max(args_.first_position - tile * kKvBlockTokens, 0);
    const int end = std::min(last - tile * kKvBlockTokens + 1, kKvBlockTokens);
    const uint32_t block =
        args_.rows.block_tables[static_cast<size_t>(row)][tile];
    const std::byte* rows =
        cache_.pool + block * cache_.block_bytes + cache_.layer_offset_bytes;
    const int width = cache_.latent_dim + cache_.rope_dim;
    float* keys = scratch_.keys.data() + ptrdiff_t{first} * key_pitch_;
    if (cache_.dtype == CacheDtype::kF32) {
      const float* latents =
          reinterpret_cast<const float*>(rows) + ptrdiff_t{first} * width;
      for (int i = 0; i < end - first; ++i) {
        std::copy_n(latents + ptrdiff_t{i} * width + cache_.latent_dim,
                    cache_.rope_dim, keys + ptrdiff_t{i} * key_pitch_ + nope_);
      }
      Expand(latents, width, end - first, keys);
      return;
    }
    const uint16_t* bf16 =
        reinterpret_cast<const uint16_t*>(rows) + ptrdiff_t{first} * width;
    const auto widen = [](uint16_t bits) {
      return std::bit_cast<float>(uint32_t{bits} << 16);
    };
    float* latents = scratch_.latents.data();
    for (int i = 0; i < end - first; ++i, bf16 += width) {
      const uint16_t* rope = bf16 + cache_.latent_dim;
      std::transform(bf16, rope, latents + ptrdiff_t{i} * cache_.latent_dim,
                     widen);
      std::transform(rope, rope + cache_.rope_dim,
                     keys + ptrdiff_t{i} * key_pitch_ + nope_, widen);
    }
    Expand(latents, cache_.latent_dim, end - first, keys);
  }

  void Expand(const float* latents, ptrdiff_t stride, int num_keys,
              float* keys) {
    const PackedWeight& key_up = args_.key_up[static_cast<size_t>(head_)];
    const PackedWeight& value_up = args_.value_up[static_cast<size_t>(head_)];
    const MatrixView<const float> x = {latents, num_keys, cache_.latent_dim,
                                       stride};
    Linear(this_thread_, {x, &key_up, {keys, num_keys, nope_, key_pitch_}});
    float* values = keys + nope_ + cache_.rope_dim;
    Linear(this_thread_, {x, &value_up, {values, num_keys, v_, key_pitch_}});
  }

  // Rows that see a part of the tile: fewer than 64.
  void AttendPart(int first_row, Group rows, int tile, bool is_first) {
    const int num = rows.end - rows.begin;
    if (num == 0) return;
    std::array<int32_t, kKvBlockTokens> positions;
    for (int i = 0; i < num; ++i) {
      positions[static_cast<size_t>(i)] =
          position(rows.begin + i) - tile * kKvBlockTokens;
    }
    AttentionBlock block = Block(rows.begin, tile);
    block.positions = positions.data();
    block.rows = num;
    block.heads = 1;
    Attend(first_row, rows.begin, is_first, &block);
  }

  // To the kernel, rows that see the whole tile are heads of one row.
  void AttendWhole(int first_row, Group rows, int tile, bool is_first) {
    constexpr int32_t kLast = kKvBlockTokens - 1;
    for (int row = rows.begin; row < rows.end; row += kMaxAttentionPairs) {
      AttentionBlock block = Block(row, tile);
      block.positions = &kLast;
      block.rows = 1;
      block.heads = std::min(rows.end - row, kMaxAttentionPairs);
      Attend(first_row, row, is_first, &block);
    }
  }

  // Over the expanded tile as a cache of its own: one block, at position 0.
  AttentionBlock Block(int row, int tile) const {
    static constexpr uint32_t kFirstBlock = 0;
    const int pair = Pair(row);
    const ptrdiff_t heads = args_.num_heads;
    return {
        .pool = reinterpret_cast<const std::byte*>(scratch_.keys.data()),
        .block_table = &kFirstBlock,
        .next_block = kFirstBlock,
        .positions = nullptr,
        .first_position =
            std::max(args_.first_position - tile * kKvBlockTokens, 0),
        .block_bytes = 0,
        .layer_offset_bytes = 0,
        .is_bf16 = false,
        .latent_dim = nope_,
        .rope_dim = cache_.rope_dim,
        .key_pitch = key_pitch_,
        .value_offset = nope_ + cache_.rope_dim,
        .value_dim = v_,
        .rows = 0,
        .heads = 0,
        .row_pitch = 1,
        .scale = args_.scale,
        .q_latent = args_.q_nope.row(pair),
        .q_latent_stride = args_.q_nope.stride * heads,
        .q_rope = args_.q_rope.row(pair),
        .q_rope_stride = args_.q_rope.stride * heads,
        .z = args_.output.row(pair),
        .z_stride = args_.output.stride * heads,
        .scratch = scratch_.kernel.data(),
        .carry = nullptr,
    };
  }

  void Attend(int first_row, int row, bool is_first, AttentionBlock* block) {
    const size_t first = static_cast<size_t>(row - first_row);
    const AttentionCarry carry = {&scratch_.max[first], &scratch_.sum[first],
                                  is_first};
    block->carry = &carry;
    kernels_.attention(*block);
  }

  const KernelTable& kernels_;
  const CpuContext this_thread_;
  const ExpandedAttentionArgs& args_;
  const LatentCache& cache_;
  const int head_;
  const int nope_;
  const int v_;
  const int key_pitch_;
  Scratch& scratch_;
};

// The end of the group that begins at `row`, of at most `limit` rows.
int GroupEnd(const CacheRows& rows, int row, int limit) {
  const size_t first = static_cast<size_t>(row);
  const size_t last =
      std::min(rows.positions.size(), first + static_cast<size_t>(limit));
  size_t end = first + 1;
  while (end < last && rows.block_tables[end] == rows.block_tables[first] &&
         rows.positions[end] >= rows.positions[end - 1]) {
    ++end;
  }
  return static_cast<int>(end);
}

void CheckArgs(const ExpandedAttentionArgs& args, const LatentCache& cache) {
  const int num_rows = static_cast<int>(args.rows.positions.size());
  CHECK_EQ(args.rows.block_tables.size(), args.rows.positions.size());
  CHECK_GE(args.first_position, 0);
  for (const int32_t position : args.rows.positions) {
    DCHECK(position >= args.first_position);
  }
  CHECK_GE(args.num_heads, 1);
  CHECK_GT(args.scale, 0);
  CHECK_EQ(args.q_nope.rows, num_rows * args.num_heads);
  CHECK_EQ(args.q_rope.rows, args.q_nope.rows);
  CHECK_EQ(args.output.rows, args.q_nope.rows);
  CHECK_EQ(args.q_rope.cols, cache.rope_dim);
  CHECK_EQ(args.key_up.size(), static_cast<size_t>(args.num_heads));
  CHECK_EQ(args.value_up.size(), args.key_up.size());
  for (size_t h = 0; h < args.key_up.size(); ++h) {
    CHECK_EQ(args.key_up[h].in(), cache.latent_dim);
    CHECK_EQ(args.key_up[h].out(), args.q_nope.cols);
    CHECK_EQ(args.value_up[h].in(), cache.latent_dim);
    CHECK_EQ(args.value_up[h].out(), args.output.cols);
  }
}

}  // namespace

void ExpandedAttention(const CpuContext& context,
                       const ExpandedAttentionArgs& args,
                       const LatentCache& cache) {
  CheckArgs(args, cache);
  const int num_rows = static_cast<int>(args.rows.positions.size());
  // Rows are split only where the heads are too few for the threads: each group
  // expands its tiles anew.
  const int most_rows =
      std::max(kKvBlockTokens,
               CeilDivide(num_rows * args.num_heads, NumThreads(context)));
  thread_local std::vector<Group> groups;
  groups.clear();
  for (int row = 0, end = 0; row < num_rows; row = end) {
    end = GroupEnd(args.rows, row, most_rows);
    groups.push_back({row, end});
  }
  const std::vector<Group>& shared = groups;  // The caller's, in every thread.
  const int num_groups = static_cast<int>(shared.size());
  ParallelFor(context, num_groups * args.num_heads, [&](int item) {
    thread_local Scratch scratch;
    HeadAttention(context, args, cache, item % args.num_heads, &scratch)
        .Run(shared[static_cast<size_t>(item / args.num_heads)]);
  });
}

}  // namespace baton
