#include "kernels/latent_attention.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/logging.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/parallel_for.h"

namespace baton {
namespace {

// To nearest, ties to even, in integers: denormals stay; a NaN stays one.
uint16_t RoundToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>(bits >> 16 | 0x40);
  }
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

size_t ValueBytes(CacheDtype dtype) {
  return dtype == CacheDtype::kF32 ? sizeof(float) : sizeof(uint16_t);
}

void WriteValues(const float* values, int n, CacheDtype dtype, std::byte* to) {
  if (dtype == CacheDtype::kF32) {
    std::copy_n(values, n, reinterpret_cast<float*>(to));
    return;
  }
  uint16_t* bf16 = reinterpret_cast<uint16_t*>(to);
  for (int i = 0; i < n; ++i) bf16[i] = RoundToBf16(values[i]);
}

void CheckRows(const CacheRows& rows, int num_rows) {
  CHECK_EQ(rows.positions.size(), static_cast<size_t>(num_rows));
  CHECK_EQ(rows.block_tables.size(), static_cast<size_t>(num_rows));
}

// Rows [begin, end) of one sequence, and heads [first_head, end_head); the
// first block of the group after it.
struct Group {
  int begin;
  int end;
  int first_head;
  int end_head;
  uint32_t next_block;
};

// The end of the group that begins at `row`: neighbours of one sequence that
// share its tiles, at most `limit` of them.
int GroupEnd(const CacheRows& rows, int row, int limit) {
  const int num_rows = static_cast<int>(rows.positions.size());
  const int last = std::min(num_rows, row + limit);
  int end = row + 1;
  while (end < last && rows.block_tables[static_cast<size_t>(end)] ==
                           rows.block_tables[static_cast<size_t>(row)]) {
    ++end;
  }
  return end;
}

void AttendGroup(const CpuContext& context, const LatentAttentionArgs& args,
                 const LatentCache& cache, const Group& group) {
  // Kept from call to call, so that steady state allocates nothing.
  thread_local std::vector<float> scratch;
  const size_t needed =
      AttentionScratchFloats(cache.latent_dim, cache.rope_dim);
  if (scratch.size() < needed) scratch.resize(needed);
  const size_t first = static_cast<size_t>(group.begin);
  const int query = group.begin * args.num_heads + group.first_head;
  KernelsFor(context.isa)
      .attention({
          .pool = cache.pool,
          .block_table = args.rows.block_tables[first],
          .next_block = group.next_block,
          .positions = args.rows.positions.data() + first,
          .first_position = args.first_position,
          .block_bytes = cache.block_bytes,
          .layer_offset_bytes = cache.layer_offset_bytes,
          .is_bf16 = cache.dtype == CacheDtype::kBf16,
          .latent_dim = cache.latent_dim,
          .rope_dim = cache.rope_dim,
          .key_pitch = cache.latent_dim + cache.rope_dim,
          .value_offset = 0,
          .value_dim = cache.latent_dim,
          .rows = group.end - group.begin,
          .heads = group.end_head - group.first_head,
          .row_pitch = args.num_heads,
          .scale = args.scale,
          .q_latent = args.q_latent.row(query),
          .q_latent_stride = args.q_latent.stride,
          .q_rope = args.q_rope.row(query),
          .q_rope_stride = args.q_rope.stride,
          .z = args.z.row(query),
          .z_stride = args.z.stride,
          .scratch = scratch.data(),
          .carry = nullptr,
      });
}

void CheckArgs(const LatentAttentionArgs& args, const LatentCache& cache) {
  const int num_rows = static_cast<int>(args.rows.positions.size());
  CheckRows(args.rows, num_rows);
  CHECK_GE(args.first_position, 0);
  for (const int32_t position : args.rows.positions) {
    DCHECK(position >= args.first_position);
  }
  CHECK_GE(args.num_heads, 1);
  CHECK_GT(args.scale, 0);
  CHECK_EQ(args.q_latent.rows, num_rows * args.num_heads);
  CHECK_EQ(args.q_rope.rows, args.q_latent.rows);
  CHECK_EQ(args.z.rows, args.q_latent.rows);
  CHECK_EQ(args.q_latent.cols, cache.latent_dim);
  CHECK_EQ(args.q_rope.cols, cache.rope_dim);
  CHECK_EQ(args.z.cols, cache.latent_dim);
}

}  // namespace

void WriteLatentCache(const CpuContext& context, const CacheRows& rows,
                      MatrixView<const float> latent,
                      MatrixView<const float> rope_key,
                      const LatentCache& cache) {
  CheckRows(rows, latent.rows);
  CHECK_EQ(rope_key.rows, latent.rows);
  CHECK_EQ(latent.cols, cache.latent_dim);
  CHECK_EQ(rope_key.cols, cache.rope_dim);
  const size_t value_bytes = ValueBytes(cache.dtype);
  const size_t latent_bytes = static_cast<size_t>(latent.cols) * value_bytes;
  const size_t row_bytes =
      latent_bytes + static_cast<size_t>(rope_key.cols) * value_bytes;
  ParallelForRows(context, latent.rows, latent.cols, [&](int r) {
    const size_t row = static_cast<size_t>(r);
    const size_t position = static_cast<size_t>(rows.positions[row]);
    const size_t block = rows.block_tables[row][position / kKvBlockTokens];
    std::byte* to = cache.pool + block * cache.block_bytes +
                    cache.layer_offset_bytes +
                    position % kKvBlockTokens * row_bytes;
    WriteValues(latent.row(r), latent.cols, cache.dtype, to);
    WriteValues(rope_key.row(r), rope_key.cols, cache.dtype, to + latent_bytes);
  });
}

void LatentAttention(const CpuContext& context, const LatentAttentionArgs& args,
                     const LatentCache& cache) {
  CheckArgs(args, cache);
  const int num_rows = static_cast<int>(args.rows.positions.size());
  if (num_rows == 0) return;
  // Few rows: the heads are split over the threads too.
  const int wanted_splits = CeilDivide(2 * NumThreads(context), num_rows);
  const int splits =
      std::max(CeilDivide(args.num_heads, kMaxAttentionPairs),
               NumThreads(context) == 1
                   ? 1
                   : std::min(wanted_splits, CeilDivide(args.num_heads, 4)));
  const int most_heads = CeilDivide(args.num_heads, splits);
  const int most_rows = kMaxAttentionPairs / most_heads;
  thread_local std::vector<Group> groups;
  groups.clear();
  for (int row = 0, end = 0; row < num_rows; row = end) {
    end = GroupEnd(args.rows, row, most_rows);
    const size_t next = static_cast<size_t>(end < num_rows ? end : row);
    for (int s = 0; s < splits; ++s) {
      groups.push_back({row, end, s * args.num_heads / splits,
                        (s + 1) * args.num_heads / splits,
                        args.rows.block_tables[next][0]});
    }
  }
  const std::vector<Group>& items = groups;  // The caller's, in every thread.
  ParallelFor(context, static_cast<int>(items.size()), [&](int item) {
    AttendGroup(context, args, cache, items[static_cast<size_t>(item)]);
  });
}

}  // namespace baton
