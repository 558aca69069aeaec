// Absorbed latent attention, tile by tile of 64 keys: scores of all pairs (row,
// head), their maximum, exponentials and sum, the sum of latents, and the merge
// with the tiles before. A pair's bits depend on its own query and on the keys
// up to its own position alone.
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/vector_math.h"

namespace baton::BATON_ISA_NAMESPACE {
namespace {

constexpr int kTileKeys = 64;
constexpr int kLanes = 16;

BATON_INLINE F32x16 LoadValues(const float* p, int lanes) {
  return LoadPartial(p, lanes);
}
BATON_INLINE F32x16 LoadValues(const uint16_t* p, int lanes) {
  return LoadBf16Partial(p, lanes);
}
BATON_INLINE F32x16 LoadValues(const float* p) { return Load(p); }
BATON_INLINE F32x16 LoadValues(const uint16_t* p) { return LoadBf16(p); }

// What a pair has gathered: of this tile, and of all tiles so far.
struct SoftmaxState {
  float tile_max[kMaxAttentionPairs];
  float tile_sum[kMaxAttentionPairs];
  float max[kMaxAttentionPairs];
  float sum[kMaxAttentionPairs];
  float keep[kMaxAttentionPairs];   // Factor of what was there before.
  float admit[kMaxAttentionPairs];  // Factor of the tile.
};

BATON_INLINE int VisibleKeys(const AttentionBlock& b, int row, int tile) {
  const int n = b.positions[row] + 1 - tile * kTileKeys;
  return n < kTileKeys ? n : kTileKeys;
}

// Rows of values [num_keys, dims] to columns [dims, 64]; columns of keys that
// are not there are zero.
template <typename T>
BATON_INLINE void TransposeKeys(const T* keys, int num_keys, int dims,
                                float* columns) {
  for (int group = 0; group < num_keys; group += kLanes) {
    for (int d = 0; d < dims; d += kLanes) {
      const int lanes = LanesFrom(d, dims);
      F32x16 x[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        x[i] = Set(0.0f);
        if (group + i < num_keys) {
          x[i] = LoadValues(keys + ptrdiff_t{group + i} * dims + d, lanes);
        }
      }
      Transpose16(x);
      for (int i = 0; i < kLanes; ++i) {
        Store(columns + ptrdiff_t{d + i} * kTileKeys + group, x[i]);
      }
    }
  }
}

// The dot products of kPairs pairs with kScoreKeyVectors vectors of keys: FMA
// over the latent, then the rope values, each ascending.
template <int kPairs>
void ScoreTile(const AttentionBlock& b, const float* columns, int first_pair,
               int first_key, float* scores) {
  const float* latent[kPairs];
  const float* rope[kPairs];
  for (int i = 0; i < kPairs; ++i) {
    const int pair = first_pair + i;
    const ptrdiff_t q =
        ptrdiff_t{pair / b.heads} * b.row_pitch + pair % b.heads;
    latent[i] = b.q_latent + q * b.q_latent_stride;
    rope[i] = b.q_rope + q * b.q_rope_stride;
  }
  F32x16 sum[kPairs][kScoreKeyVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kScoreKeyVectors; ++v) sum[i][v] = Set(0.0f);
  }
  const float* column = columns + first_key;
  const auto add = [&](const float* const(&query)[kPairs], int dims) {
    for (int d = 0; d < dims; ++d, column += kTileKeys) {
      F32x16 key[kScoreKeyVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kScoreKeyVectors; ++v) {
        key[v] = Load(column + v * kLanes);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kPairs; ++i) {
        const F32x16 q = Set(query[i][d]);
#pragma GCC unroll 8
        for (int v = 0; v < kScoreKeyVectors; ++v) {
          sum[i][v] = Fma(q, key[v], sum[i][v]);
        }
      }
    }
  };
  add(latent, b.latent_dim);
  add(rope, b.rope_dim);
#pragma GCC unroll 8
  for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kScoreKeyVectors; ++v) {
      Store(scores + ptrdiff_t{first_pair + i} * kTileKeys + first_key +
                v * kLanes,
            sum[i][v]);
    }
  }
}

using ScoreFunction = void (*)(const AttentionBlock&, const float*, int, int,
                               float*);
template <int kPairs>
BATON_INLINE ScoreFunction PickScore(int pairs) {
  if constexpr (kPairs > 1) {
    if (pairs < kPairs) return PickScore<kPairs - 1>(pairs);
  }
  return ScoreTile<kPairs>;
}

BATON_INLINE void Score(const AttentionBlock& b, const float* columns,
                        int num_keys, float* scores) {
  const int num_pairs = b.rows * b.heads;
  const int tiles = (num_pairs + kScorePairs - 1) / kScorePairs;
  for (int i = 0; i < tiles; ++i) {
    const int first = i * num_pairs / tiles;
    const int pairs = (i + 1) * num_pairs / tiles - first;
    const ScoreFunction score = PickScore<kScorePairs>(pairs);
    for (int key = 0; key < num_keys; key += kScoreKeyVectors * kLanes) {
      score(b, columns, first, key, scores);
    }
  }
}

// scores[0, n) become exp(scale * score - max).
BATON_INLINE void Exponentiate(float scale, int n, float* scores, float* max,
                               float* sum) {
  F32x16 highest = Set(-__builtin_inff());
  for (int i = 0; i < n; i += kLanes) {
    const F32x16 s = Load(scores + i) * Set(scale);
    const M16 visible = FirstLanes(LanesFrom(i, n));
    const F32x16 masked = Select(visible, s, Set(-__builtin_inff()));
    Store(scores + i, masked);
    highest = Max(highest, masked);
  }
  *max = MaxLane(highest);
  F32x16 total = Set(0.0f);
  for (int i = 0; i < n; i += kLanes) {
    const F32x16 p = Exp(Load(scores + i) - Set(*max));
    Store(scores + i, p);
    total = total + p;
  }
  *sum = Sum(total);
}

// Of each pair that sees the tile: exponentials in place, then the factors of
// the merge.
BATON_INLINE void Softmax(const AttentionBlock& b, int tile, float* scores,
                          SoftmaxState* state) {
  const int num_pairs = b.rows * b.heads;
  for (int pair = 0; pair < num_pairs; ++pair) {
    const int n = VisibleKeys(b, pair / b.heads, tile);
    state->tile_max[pair] = -__builtin_inff();
    state->tile_sum[pair] = 0.0f;
    if (n <= 0) continue;
    Exponentiate(b.scale, n, scores + ptrdiff_t{pair} * kTileKeys,
                 state->tile_max + pair, state->tile_sum + pair);
  }
  for (int i = 0; i < num_pairs; i += kLanes) {
    const F32x16 tile_max = Load(state->tile_max + i);
    const F32x16 tile_sum = Load(state->tile_sum + i);
    if (tile == 0) {
      Store(state->max + i, tile_max);
      Store(state->sum + i, tile_sum);
      continue;
    }
    const F32x16 before = Load(state->max + i);
    const F32x16 max = Max(before, tile_max);
    const F32x16 keep = Exp(before - max);
    const F32x16 admit = Exp(tile_max - max);
    Store(state->max + i, max);
    Store(state->keep + i, keep);
    Store(state->admit + i, admit);
    Store(state->sum + i, Fma(tile_sum, admit, Load(state->sum + i) * keep));
  }
}

// What SumTile adds up: heads of one row, some vectors of the latent.
struct SumRange {
  int row;
  int first_head;
  int first_value;
  int num_values;  // Of the latent from first_value on.
  int num_keys;
  bool first_tile;
};

// z = sum_t p_t c_t over the tile, t ascending, merged with what is in z.
template <typename T, int kHeads, int kVectors>
void SumTile(const AttentionBlock& b, const T* keys, const float* scores,
             const SoftmaxState& state, const SumRange& r) {
  const int pair = r.row * b.heads + r.first_head;
  const ptrdiff_t dims = b.latent_dim + b.rope_dim;
  const float* p = scores + ptrdiff_t{pair} * kTileKeys;
  const T* c = keys + r.first_value;
  const bool whole = r.num_values >= kVectors * kLanes;
  F32x16 sum[kHeads][kVectors];
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[h][v] = Set(0.0f);
  }
  for (int t = 0; t < r.num_keys; ++t, c += dims) {
    F32x16 value[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      value[v] = whole ? LoadValues(c + v * kLanes)
                       : LoadValues(c + v * kLanes,
                                    LanesFrom(v * kLanes, r.num_values));
    }
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const F32x16 weight = Set(p[h * kTileKeys + t]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sum[h][v] = Fma(weight, value[v], sum[h][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
    float* z =
        b.z + (ptrdiff_t{r.row} * b.row_pitch + r.first_head + h) * b.z_stride +
        r.first_value;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int lanes = LanesFrom(v * kLanes, r.num_values);
      if (!r.first_tile) {
        const F32x16 kept =
            LoadPartial(z + v * kLanes, lanes) * Set(state.keep[pair + h]);
        sum[h][v] = Fma(sum[h][v], Set(state.admit[pair + h]), kept);
      }
      StorePartial(z + v * kLanes, sum[h][v], lanes);
    }
  }
}

template <typename T>
using SumFunction = void (*)(const AttentionBlock&, const T*, const float*,
                             const SoftmaxState&, const SumRange&);
template <typename T, int kHeads, int kVectors>
BATON_INLINE SumFunction<T> PickSum(int heads, int vectors) {
  if constexpr (kHeads > 1) {
    if (heads < kHeads) return PickSum<T, kHeads - 1, kVectors>(heads, vectors);
  }
  if constexpr (kVectors > 1) {
    if (vectors < kVectors) {
      return PickSum<T, kHeads, kVectors - 1>(heads, vectors);
    }
  }
  return SumTile<T, kHeads, kVectors>;
}

template <typename T>
BATON_INLINE void SumLatents(const AttentionBlock& b, const T* keys, int tile,
                             const float* scores, const SoftmaxState& state) {
  const int head_tiles = (b.heads + kSumHeads - 1) / kSumHeads;
  constexpr int kValues = kSumVectors * kLanes;
  for (int row = 0; row < b.rows; ++row) {
    const int num_keys = VisibleKeys(b, row, tile);
    if (num_keys <= 0) continue;
    for (int i = 0; i < head_tiles; ++i) {
      const int head = i * b.heads / head_tiles;
      const int heads = (i + 1) * b.heads / head_tiles - head;
      for (int d = 0; d < b.latent_dim; d += kValues) {
        const int rest = b.latent_dim - d;
        const int values = rest < kValues ? rest : kValues;
        PickSum<T, kSumHeads, kSumVectors>(heads, (values + 15) / kLanes)(
            b, keys, scores, state,
            {row, head, d, values, num_keys, tile == 0});
      }
    }
  }
}

BATON_INLINE void DivideBySums(const AttentionBlock& b,
                               const SoftmaxState& state) {
  for (int pair = 0; pair < b.rows * b.heads; ++pair) {
    const ptrdiff_t row =
        ptrdiff_t{pair / b.heads} * b.row_pitch + pair % b.heads;
    float* z = b.z + row * b.z_stride;
    const F32x16 inverse = Set(1.0f / state.sum[pair]);
    for (int i = 0; i < b.latent_dim; i += kLanes) {
      const int lanes = LanesFrom(i, b.latent_dim);
      StorePartial(z + i, LoadPartial(z + i, lanes) * inverse, lanes);
    }
  }
}

template <typename T>
BATON_INLINE void Attend(const AttentionBlock& b) {
  const int dims = b.latent_dim + b.rope_dim;
  int last = 0;
  for (int r = 0; r < b.rows; ++r) {
    if (b.positions[r] > last) last = b.positions[r];
  }
  float* scores = b.scratch;
  float* columns = scores + kMaxAttentionPairs * kTileKeys;
  SoftmaxState state = {};
  for (int tile = 0; tile <= last / kTileKeys; ++tile) {
    const T* keys = reinterpret_cast<const T*>(
        b.pool + b.block_table[tile] * b.block_bytes + b.layer_offset_bytes);
    const int rest = last + 1 - tile * kTileKeys;
    const int num_keys = rest < kTileKeys ? rest : kTileKeys;
    TransposeKeys(keys, num_keys, dims, columns);
    Score(b, columns, num_keys, scores);
    Softmax(b, tile, scores, &state);
    SumLatents(b, keys, tile, scores, state);
  }
  DivideBySums(b, state);
}

}  // namespace

void AttentionKernel(const AttentionBlock& b) {
  if (b.is_bf16) {
    Attend<uint16_t>(b);
  } else {
    Attend<float>(b);
  }
}

}  // namespace baton::BATON_ISA_NAMESPACE
