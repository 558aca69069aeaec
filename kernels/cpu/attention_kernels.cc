// Attention, tile by tile of 64 keys: scores of all pairs (row,
// head), their maximum, exponentials and sum, the sum of values, and the merge
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

BATON_INLINE float Widen(float x) { return x; }
BATON_INLINE float Widen(uint16_t x) { return FloatOf(uint32_t{x} << 16); }

// What a pair has gathered: of this tile, and of all tiles so far.
struct SoftmaxState {
  float tile_max[kMaxAttentionPairs];
  float tile_sum[kMaxAttentionPairs];
  float max[kMaxAttentionPairs];
  float sum[kMaxAttentionPairs];
  float keep[kMaxAttentionPairs];   // Factor of what was there before.
  float admit[kMaxAttentionPairs];  // Factor of the tile.
};

// A tile's keys are those of positions [TileBegin, 64 * (tile + 1)).
BATON_INLINE int TileBegin(const AttentionBlock& b, int tile) {
  const int begin = tile * kTileKeys;
  return begin < b.first_position ? b.first_position : begin;
}

// How many of a tile's keys a row at `position` sees; not positive: none.
BATON_INLINE int VisibleKeys(const AttentionBlock& b, int position, int tile) {
  const int tile_end = (tile + 1) * kTileKeys;
  const int end = position < tile_end ? position + 1 : tile_end;
  return end - TileBegin(b, tile);
}

// The tile's keys as the scores want them: a step holds four values of each key
// of a group of sixteen, zeros where the latent or the rope values end.
//   arranged := group*   group := step*
//   step     := (values d .. d + 3 of keys j, 4 + j, 8 + j, 12 + j)  for j < 4
constexpr int kStepValues = 4;
constexpr int kStepFloats = kStepValues * kLanes;

BATON_INLINE int NumSteps(int dims) {
  return (dims + kStepValues - 1) / kStepValues;
}

// The step of values *keys of sixteen keys, `pitch` apart; two steps for bf16.
BATON_INLINE void ArrangeWhole(const float* keys, ptrdiff_t pitch, float* to) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j, keys += pitch, to += kLanes) {
    Store(to, FromBits(LoadQuads(keys, keys + 4 * pitch, keys + 8 * pitch,
                                 keys + 12 * pitch)));
  }
}
BATON_INLINE void ArrangeWhole(const uint16_t* keys, ptrdiff_t pitch,
                               float* to) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j, keys += pitch, to += kLanes) {
    const I32x16 x =
        LoadQuads(keys, keys + 4 * pitch, keys + 8 * pitch, keys + 12 * pitch);
    Store(to, WidenLowBf16(x));
    Store(to + kStepFloats, WidenHighBf16(x));
  }
}

// One step, of which `values` are there.
template <typename T>
void ArrangePart(const T* keys, ptrdiff_t pitch, int values, float* to) {
  for (int i = 0; i < kLanes; ++i) {
    for (int k = 0; k < kStepValues; ++k) {
      to[i % 4 * kLanes + i / 4 * 4 + k] =
          k < values ? Widen(keys[i * pitch + k]) : 0.0f;
    }
  }
}

// `dims` values of sixteen keys; returns where the next go.
template <typename T>
BATON_INLINE float* ArrangeValues(const T* keys, ptrdiff_t pitch, int dims,
                                  float* to) {
  constexpr int kWhole = 16 / static_cast<int>(sizeof(T));
  int d = 0;
  for (; d + kWhole <= dims; d += kWhole) {
    ArrangeWhole(keys + d, pitch, to);
    to += kWhole * kLanes;
  }
  for (; d < dims; d += kStepValues) {
    ArrangePart(keys + d, pitch, dims - d, to);
    to += kStepFloats;
  }
  return to;
}

// Sixteen rows of `dims` values, num_keys of them copied, the rest zeros.
template <typename T>
void CopyKeys(const T* keys, ptrdiff_t pitch, int num_keys, int dims, T* to) {
  for (int key = 0; key < num_keys; ++key, to += dims) {
    for (int i = 0; i < dims; ++i) to[i] = keys[key * pitch + i];
  }
  for (int i = 0; i < (kLanes - num_keys) * dims; ++i) to[i] = T{0};
}

// Arranges num_keys rows [latent | rope]. A group that is not whole is copied
// to `rest` and filled up there: what lies after it must not be read.
template <typename T>
BATON_INLINE void ArrangeKeys(const AttentionBlock& b, const T* rows,
                              int num_keys, T* rest, float* to) {
  ptrdiff_t pitch = b.key_pitch;
  for (int group = 0; group < num_keys; group += kLanes) {
    const T* keys = rows + group * pitch;
    if (num_keys - group < kLanes) {
      CopyKeys(keys, pitch, num_keys - group, b.latent_dim + b.rope_dim, rest);
      keys = rest;
      pitch = b.latent_dim + b.rope_dim;
    }
    to = ArrangeValues(keys, pitch, b.latent_dim, to);
    to = ArrangeValues(keys + b.latent_dim, pitch, b.rope_dim, to);
  }
}

// Zeros follow, up to a multiple of 16.
BATON_INLINE void CopyQuery(const float* from, int dims, float* to) {
  for (int i = 0; i < dims; i += kLanes) {
    Store(to + i, LoadPartial(from + i, LanesFrom(i, dims)));
  }
}

// Each pair's query, [latent | rope], both filled up to whole steps. May write
// up to 15 floats more.
BATON_INLINE void ArrangeQueries(const AttentionBlock& b, int steps,
                                 float* to) {
  for (int pair = 0; pair < b.rows * b.heads; ++pair) {
    const ptrdiff_t row =
        ptrdiff_t{pair / b.heads} * b.row_pitch + pair % b.heads;
    float* query = to + ptrdiff_t{pair} * steps * kStepValues;
    CopyQuery(b.q_latent + row * b.q_latent_stride, b.latent_dim, query);
    CopyQuery(b.q_rope + row * b.q_rope_stride, b.rope_dim,
              query + NumSteps(b.latent_dim) * kStepValues);
  }
}

// The dot products of kPairs pairs with a group of keys: four sums by FMA over
// the steps, of the values d mod 4, then (0 + 2) + (1 + 3).
template <int kPairs>
void ScoreGroup(const float* queries, const float* group, int steps,
                float* scores) {
  F32x16 sum[kPairs][4];
#pragma GCC unroll 8
  for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[i][j] = Set(0.0f);
  }
  const ptrdiff_t pitch = ptrdiff_t{steps} * kStepValues;
  const float* const end = group + ptrdiff_t{steps} * kStepFloats;
  for (; group != end; group += kStepFloats, queries += kStepValues) {
    F32x16 key[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) key[j] = Load(group + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kPairs; ++i) {
      const F32x16 query = BroadcastQuad(queries + i * pitch);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sum[i][j] = Fma(query, key[j], sum[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kPairs; ++i) {
    TransposeQuads(sum[i]);
    Store(scores + i * kTileKeys,
          (sum[i][0] + sum[i][2]) + (sum[i][1] + sum[i][3]));
  }
}

using ScoreFunction = void (*)(const float*, const float*, int, float*);
template <int kPairs>
BATON_INLINE ScoreFunction PickScore(int pairs) {
  if constexpr (kPairs > 1) {
    if (pairs < kPairs) return PickScore<kPairs - 1>(pairs);
  }
  return ScoreGroup<kPairs>;
}

// What the tiles share: a step is a step of keys and of queries.
struct Scratch {
  int steps;
  float* queries;
  float* keys;
  float* scores;  // [pairs, 64]
  float* rest;    // [16, latent + rope]
};

BATON_INLINE void Score(const Scratch& scratch, int num_pairs, int num_keys) {
  const int tiles = (num_pairs + kScorePairs - 1) / kScorePairs;
  for (int i = 0; i < tiles; ++i) {
    const int first = i * num_pairs / tiles;
    const int pairs = (i + 1) * num_pairs / tiles - first;
    const ScoreFunction score = PickScore<kScorePairs>(pairs);
    const float* queries =
        scratch.queries + ptrdiff_t{first} * scratch.steps * kStepValues;
    for (int key = 0; key < num_keys; key += kLanes) {
      score(queries,
            scratch.keys + ptrdiff_t{key} * scratch.steps * kStepValues,
            scratch.steps, scratch.scores + first * kTileKeys + key);
    }
  }
}

// scores[0, n) become exp(scale * score - max), max = scale * the greatest
// score; up to a multiple of 16, zeros follow.
BATON_INLINE void ExponentiatePart(float scale, int n, float* scores,
                                   float* max, float* sum) {
  F32x16 highest = Set(-__builtin_inff());
  for (int i = 0; i < n; i += kLanes) {
    const M16 visible = FirstLanes(LanesFrom(i, n));
    const F32x16 score =
        Select(visible, Load(scores + i), Set(-__builtin_inff()));
    Store(scores + i, score);
    highest = Max(highest, score);
  }
  *max = scale * MaxLane(highest);
  F32x16 total = Set(0.0f);
  for (int i = 0; i < n; i += kLanes) {
    const F32x16 p = Exp(Fma(Set(scale), Load(scores + i), Set(-*max)));
    Store(scores + i, p);
    total = total + p;
  }
  *sum = Sum(total);
}

// The same of a tile that is visible as a whole.
BATON_INLINE void ExponentiateWhole(float scale, float* scores, float* max,
                                    float* sum) {
  F32x16 p[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) p[i] = Load(scores + i * kLanes);
  *max = scale * MaxLane(Max(Max(p[0], p[1]), Max(p[2], p[3])));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    p[i] = Exp(Fma(Set(scale), p[i], Set(-*max)));
    Store(scores + i * kLanes, p[i]);
  }
  *sum = Sum(((p[0] + p[1]) + p[2]) + p[3]);
}

// Of each pair that sees the tile: exponentials in place, then the factors of
// the merge.
BATON_INLINE void Softmax(const AttentionBlock& b, int tile, bool is_first,
                          float* scores, SoftmaxState* state) {
  const int num_pairs = b.rows * b.heads;
  for (int pair = 0; pair < num_pairs; ++pair) {
    const int n = VisibleKeys(b, b.positions[pair / b.heads], tile);
    state->tile_max[pair] = -__builtin_inff();
    state->tile_sum[pair] = 0.0f;
    if (n <= 0) continue;
    float* pair_scores = scores + ptrdiff_t{pair} * kTileKeys;
    if (n == kTileKeys) {
      ExponentiateWhole(b.scale, pair_scores, state->tile_max + pair,
                        state->tile_sum + pair);
    } else {
      ExponentiatePart(b.scale, n, pair_scores, state->tile_max + pair,
                       state->tile_sum + pair);
    }
  }
  for (int i = 0; i < num_pairs; i += kLanes) {
    const F32x16 tile_max = Load(state->tile_max + i);
    const F32x16 tile_sum = Load(state->tile_sum + i);
    if (is_first) {
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

// What SumTile adds up: heads of one row, some vectors of the values.
struct SumRange {
  int row;
  int first_head;
  int first_value;
  int num_values;  // From first_value on.
  int num_keys;
  bool first_tile;
  const char* ahead;  // A tile that is wanted next, or null.
};

BATON_INLINE void PrefetchBytes(const char* from, ptrdiff_t bytes) {
  for (ptrdiff_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

// z = sum_t p_t c_t over the tile, t ascending, merged with what is in z.
template <typename T, int kHeads, int kVectors>
void SumTile(const AttentionBlock& b, const T* keys, const float* scores,
             const SoftmaxState& state, const SumRange& r) {
  const int pair = r.row * b.heads + r.first_head;
  const ptrdiff_t pitch = b.key_pitch;
  const ptrdiff_t row_bytes = pitch * static_cast<ptrdiff_t>(sizeof(T));
  const float* p = scores + ptrdiff_t{pair} * kTileKeys;
  const T* c = keys + b.value_offset + r.first_value;
  const bool whole = r.num_values >= kVectors * kLanes;
  F32x16 sum[kHeads][kVectors];
#pragma GCC unroll 8
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[h][v] = Set(0.0f);
  }
  for (int t = 0; t < r.num_keys; ++t, c += pitch) {
    if (r.ahead != nullptr) PrefetchBytes(r.ahead + t * row_bytes, row_bytes);
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
struct TileKeys {
  const T* keys;
  const T* next;  // A tile that is wanted next.
  int tile;
  bool is_first;
};

template <typename T>
BATON_INLINE void SumValues(const AttentionBlock& b, const TileKeys<T>& t,
                            const float* scores, const SoftmaxState& state) {
  const char* ahead = reinterpret_cast<const char*>(t.next);
  const int head_tiles = (b.heads + kSumHeads - 1) / kSumHeads;
  constexpr int kValues = kSumVectors * kLanes;
  for (int row = 0; row < b.rows; ++row) {
    const int num_keys = VisibleKeys(b, b.positions[row], t.tile);
    if (num_keys <= 0) continue;
    for (int i = 0; i < head_tiles; ++i) {
      const int head = i * b.heads / head_tiles;
      const int heads = (i + 1) * b.heads / head_tiles - head;
      for (int d = 0; d < b.value_dim; d += kValues) {
        const int rest = b.value_dim - d;
        const int values = rest < kValues ? rest : kValues;
        PickSum<T, kSumHeads, kSumVectors>(heads, (values + 15) / kLanes)(
            b, t.keys, scores, state,
            {row, head, d, values, num_keys, t.is_first, ahead});
        ahead = nullptr;
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
    for (int i = 0; i < b.value_dim; i += kLanes) {
      const int lanes = LanesFrom(i, b.value_dim);
      StorePartial(z + i, LoadPartial(z + i, lanes) * inverse, lanes);
    }
  }
}

template <typename T>
BATON_INLINE const T* BlockKeys(const AttentionBlock& b, uint32_t block) {
  return reinterpret_cast<const T*>(b.pool + block * b.block_bytes +
                                    b.layer_offset_bytes);
}

BATON_INLINE void LoadCarry(const AttentionBlock& b, SoftmaxState* state) {
  if (b.carry->is_first) return;
  for (int pair = 0; pair < b.rows * b.heads; ++pair) {
    state->max[pair] = b.carry->max[pair];
    state->sum[pair] = b.carry->sum[pair];
  }
}

BATON_INLINE void StoreCarry(const AttentionBlock& b,
                             const SoftmaxState& state) {
  for (int pair = 0; pair < b.rows * b.heads; ++pair) {
    b.carry->max[pair] = state.max[pair];
    b.carry->sum[pair] = state.sum[pair];
  }
}

template <typename T>
BATON_INLINE void Attend(const AttentionBlock& b) {
  int last = 0;
  for (int r = 0; r < b.rows; ++r) {
    if (b.positions[r] > last) last = b.positions[r];
  }
  const int steps = NumSteps(b.latent_dim) + NumSteps(b.rope_dim);
  const ptrdiff_t arranged = ptrdiff_t{steps} * kStepValues * kTileKeys;
  const Scratch scratch = {
      steps, b.scratch, b.scratch + arranged, b.scratch + 2 * arranged,
      b.scratch + 2 * arranged + kMaxAttentionPairs * kTileKeys};
  ArrangeQueries(b, steps, scratch.queries);
  SoftmaxState state = {};
  if (b.carry != nullptr) LoadCarry(b, &state);
  const int first_tile = b.first_position / kTileKeys;
  const int last_tile = last / kTileKeys;
  for (int tile = first_tile; tile <= last_tile; ++tile) {
    const T* keys = BlockKeys<T>(b, b.block_table[tile]) +
                    ptrdiff_t{TileBegin(b, tile) % kTileKeys} * b.key_pitch;
    const T* next = BlockKeys<T>(
        b, tile < last_tile ? b.block_table[tile + 1] : b.next_block);
    const int num_keys = VisibleKeys(b, last, tile);
    const bool is_first =
        tile == first_tile && (b.carry == nullptr || b.carry->is_first);
    ArrangeKeys(b, keys, num_keys, reinterpret_cast<T*>(scratch.rest),
                scratch.keys);
    Score(scratch, b.rows * b.heads, num_keys);
    Softmax(b, tile, is_first, scratch.scores, &state);
    SumValues<T>(b, {keys, next, tile, is_first}, scratch.scores, state);
  }
  if (b.carry != nullptr) {
    StoreCarry(b, state);
  } else {
    DivideBySums(b, state);
  }
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
