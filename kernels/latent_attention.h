// Multi-head latent attention, absorbed form, over a paged latent cache.
#ifndef BATON_KERNELS_LATENT_ATTENTION_H_
#define BATON_KERNELS_LATENT_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu_context.h"
#include "kernels/matrix_view.h"

namespace baton {

inline constexpr int kKvBlockTokens = 64;

enum class CacheDtype { kF32, kBf16 };

// One layer's rows inside paged blocks. Row of position p of a sequence:
//   pool + block_table[p / 64] * block_bytes + layer_offset_bytes
//        + (p % 64) * (latent_dim + rope_dim) * sizeof(dtype)
// = latent (latent_dim values), then rope key (rope_dim values).
struct LatentCache {
  std::byte* pool = nullptr;
  size_t block_bytes = 0;
  size_t layer_offset_bytes = 0;
  int latent_dim = 0;
  int rope_dim = 0;
  CacheDtype dtype = CacheDtype::kF32;
};

// Where each row of a batch belongs: row r is position positions[r] of the
// sequence whose blocks are block_tables[r] (borrowed; at least p / 64 + 1
// ids).
struct CacheRows {
  std::span<const int32_t> positions;
  std::span<const uint32_t* const> block_tables;
};

// Writes row r: latent [rows, latent_dim] and rope_key [rows, rope_dim],
// rounded to the cache's dtype (to nearest even in integers for bf16).
void WriteLatentCache(const CpuContext& context, const CacheRows& rows,
                      MatrixView<const float> latent,
                      MatrixView<const float> rope_key,
                      const LatentCache& cache);

// z[r, h] = sum_t p_t c_t, p = softmax_t(scale * (q_latent[r, h] . c_t +
// q_rope[r, h] . k_t)), t in [first_position, positions[r]], read from the
// cache alone. Row r * heads + h of the matrices: q_latent [rows * heads,
// latent_dim], q_rope [rows * heads, rope_dim], z as q_latent. Keys in tiles of
// 64 at absolute positions, each (max, sum, acc) by itself, merged left to
// right; keys before first_position or past positions[r] are never read. Lane i
// of a tile's sums is its visible keys i mod 16, counted from the first.
struct LatentAttentionArgs {
  CacheRows rows;
  int first_position = 0;  // At most any of rows.positions.
  int num_heads = 0;
  float scale = 0;
  MatrixView<const float> q_latent;
  MatrixView<const float> q_rope;
  MatrixView<float> z;
};
void LatentAttention(const CpuContext& context, const LatentAttentionArgs& args,
                     const LatentCache& cache);

}  // namespace baton

#endif  // BATON_KERNELS_LATENT_ATTENTION_H_
