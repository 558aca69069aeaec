// One row's token: truncation in integers, the Gumbel-max draw.
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/row_reduction.h"
#include "kernels/cpu/vector_math.h"

namespace baton::BATON_ISA_NAMESPACE {
namespace {

// The lowest index of `value`, or 0.
BATON_INLINE int IndexOf(float value, const float* x, int n) {
  for (int i = 0; i < n; i += kLanes) {
    const int lanes = LanesFrom(i, n);
    const uint32_t found = MaskBits(LoadPartial(x + i, lanes) == Set(value)) &
                           ((uint32_t{1} << lanes) - 1);
    if (found != 0) return i + __builtin_ctz(found);
  }
  return 0;
}

// --- Noise -------------------------------------------------------------------

struct Philox {
  I32x16 word[4];
};

// Philox4x32-10 of the counters (block, sample_index, position).
BATON_INLINE Philox RandomWords(const DrawRow& row, I32x16 block) {
  Philox c = {{block, Set(static_cast<int32_t>(row.sample_index)),
               Set(static_cast<int32_t>(row.position)),
               Set(static_cast<int32_t>(row.position >> 32))}};
  uint32_t key0 = static_cast<uint32_t>(row.seed);
  uint32_t key1 = static_cast<uint32_t>(row.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const WideProduct a =
        MultiplyWide(c.word[0], Set(static_cast<int32_t>(0xd2511f53u)));
    const WideProduct b =
        MultiplyWide(c.word[2], Set(static_cast<int32_t>(0xcd9e8d57u)));
    c = {{b.high ^ c.word[1] ^ Set(static_cast<int32_t>(key0)), b.low,
          a.high ^ c.word[3] ^ Set(static_cast<int32_t>(key1)), a.low}};
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return c;
}

// The best of what was offered: the largest z + g, the lowest id of equals.
struct Draw {
  float value = kMinusInfinity;
  uint32_t token = 0;
};

BATON_INLINE void Offer(F32x16 value, I32x16 ids, Draw* best) {
  const uint32_t candidates = MaskBits(Set(best->value) <= value);
  if (candidates == 0) return;
  float values[kLanes];
  int32_t tokens[kLanes];
  Store(values, value);
  Store(tokens, ids);
  for (uint32_t rest = candidates; rest != 0; rest &= rest - 1) {
    const int i = __builtin_ctz(rest);
    const uint32_t token = static_cast<uint32_t>(tokens[i]);
    if (values[i] > best->value ||
        (values[i] == best->value && token < best->token)) {
      *best = {values[i], token};
    }
  }
}

// Offers tokens `ids` (the first `lanes`) with their z.
BATON_INLINE void OfferListed(const DrawRow& row, I32x16 ids, F32x16 z,
                              Draw* best) {
  const Philox random = RandomWords(row, ShiftRightLogical<2>(ids));
  const I32x16 which = ids & Set(int32_t{3});
  I32x16 word = random.word[0];
  for (int j = 1; j < 4; ++j) {
    word = Select(which == Set(int32_t{j}), random.word[j], word);
  }
  Offer(z + Gumbel(word), ids, best);
}

// At least the Gumbel variate of a word, cheaply: g <= -log v, and a float's
// bits, read as a number, never exceed its logarithm.
BATON_INLINE F32x16 GumbelBound(I32x16 word) {
  const F32x16 v = ToFloat(ShiftRightLogical<8>(word));  // v times 2^24.
  return Fma(ToFloat(Bits(v)), Set(-0x1.62e43p-24f),
             Set(151 * kLn2High + 1e-3f));
}

// The draw over the whole vocabulary. Only tokens that could still win have
// their variate computed.
BATON_INLINE uint32_t DrawFromAll(const DrawRow& row, int argmax,
                                  F32x16 inverse_t) {
  Draw best;
  const float z = row.logits[argmax] * FirstLane(inverse_t);
  OfferListed(row, Set(int32_t{argmax}), Set(z), &best);
  // Lane 4 g + k counts block 4 k + g: TransposeQuads gives tokens in order.
  const I32x16 lane = LaneIndex();
  const I32x16 blocks =
      ShiftLeft<2>(lane & Set(int32_t{3})) + ShiftRightLogical<2>(lane);
  for (int i = 0; i < row.vocab; i += 4 * kLanes) {
    const Philox random = RandomWords(row, blocks + Set(int32_t{i / 4}));
    F32x16 words[4];
    for (int j = 0; j < 4; ++j) words[j] = FromBits(random.word[j]);
    TransposeQuads(words);
    for (int j = 0; j < 4 && i + j * kLanes < row.vocab; ++j) {
      const int first = i + j * kLanes;
      const F32x16 values = LoadOr(kMinusInfinity, row.logits + first,
                                   LanesFrom(first, row.vocab)) *
                            inverse_t;
      const I32x16 word = Bits(words[j]);
      const F32x16 bound = values + GumbelBound(word);
      if (MaskBits(Set(best.value) <= bound) == 0) continue;
      Offer(values + Gumbel(word), lane + Set(int32_t{first}), &best);
    }
  }
  return best.token;
}

// --- Truncation --------------------------------------------------------------

// Tokens that may be kept, in arrays beside each other.
struct Candidates {
  int32_t* ids;
  int32_t* keys;  // OrderedBits(z).
  int32_t* weights;
  int count;
  uint64_t total_weight;
};

BATON_INLINE I32x16 Weights(F32x16 z, float z_max) {
  return Truncate(Exp(z - Set(z_max)) * Set(0x1p30f));
}

BATON_INLINE uint64_t SumWeights(const DrawRow& row, F32x16 inverse_t,
                                 float z_max) {
  uint64_t total = 0;
  for (int i = 0; i < row.vocab; i += kLanes) {
    const F32x16 z =
        LoadOr(kMinusInfinity, row.logits + i, LanesFrom(i, row.vocab)) *
        inverse_t;
    total += SumUnsigned(Weights(z, z_max));
  }
  return total;
}

// floor(top_p * total), exactly.
BATON_INLINE uint64_t WeightLimit(float top_p, uint64_t total) {
  const uint32_t bits = BitsOf(top_p);
  const int exponent = static_cast<int>(bits >> 23);
  const uint32_t fraction = bits & 0x7fffff;
  const uint32_t mantissa = exponent == 0 ? fraction : fraction | 0x800000;
  const int shift = 150 - (exponent == 0 ? 1 : exponent);  // top_p < 1: >= 24.
  if (shift >= 128) return 0;
  return static_cast<uint64_t>(
      static_cast<unsigned __int128>(mantissa) * total >> shift);
}

BATON_INLINE void Collect(const DrawRow& row, F32x16 inverse_t, float z_max,
                          float lowest, Candidates* c) {
  c->count = 0;
  c->total_weight = 0;
  for (int i = 0; i < row.vocab; i += kLanes) {
    const int lanes = LanesFrom(i, row.vocab);
    // Of weight 0 beyond the vocabulary: e^(0 - z_max) may be past an integer.
    const F32x16 z = LoadOr(kMinusInfinity, row.logits + i, lanes) * inverse_t;
    // The lanes beyond the vocabulary must not count, whatever `lowest` is.
    const M16 chosen =
        Set(lowest) <= Select(FirstLanes(lanes), z, Set(__builtin_nanf("")));
    if (MaskBits(chosen) == 0) continue;
    const I32x16 weights = Select(chosen, Weights(z, z_max), Set(int32_t{0}));
    StoreSelected(c->ids + c->count, chosen, LaneIndex() + Set(int32_t{i}));
    StoreSelected(c->keys + c->count, chosen, OrderedBits(z));
    c->count += StoreSelected(c->weights + c->count, chosen, weights);
    c->total_weight += SumUnsigned(weights);
  }
}

BATON_INLINE bool Before(const Candidates& c, int i, int j) {
  return c.keys[i] != c.keys[j] ? c.keys[i] > c.keys[j] : c.ids[i] < c.ids[j];
}

BATON_INLINE void Swap(const Candidates& c, int i, int j) {
  int32_t* const arrays[] = {c.ids, c.keys, c.weights};
  for (int32_t* array : arrays) {
    const int32_t x = array[i];
    array[i] = array[j];
    array[j] = x;
  }
}

// Moves a middling candidate of [low, high) to its place in the order within
// that range, those before it to its left; returns the place.
BATON_INLINE int Partition(const Candidates& c, int low, int high) {
  const int middle = low + (high - low) / 2;
  const int last = high - 1;
  if (Before(c, middle, low)) Swap(c, middle, low);
  if (Before(c, last, low)) Swap(c, last, low);
  if (Before(c, middle, last)) Swap(c, middle, last);
  int place = low;  // The median is at `last`.
  for (int i = low; i < last; ++i) {
    if (Before(c, i, last)) Swap(c, i, place++);
  }
  Swap(c, place, last);
  return place;
}

// Brings the kept candidates to the front and returns how many they are: the
// longest prefix of the order in which each has at most `weight_limit` of
// weight, and fewer than `count_limit` others, before it.
BATON_INLINE int SelectPrefix(const Candidates& c, uint64_t weight_limit,
                              int count_limit) {
  int low = 0;  // [0, low) is kept, [high, count) is not.
  int high = c.count;
  uint64_t weight_before = 0;
  while (low < high) {
    const int place = Partition(c, low, high);
    uint64_t weight = weight_before;
    for (int i = low; i < place; ++i) {
      weight += static_cast<uint32_t>(c.weights[i]);
    }
    if (weight <= weight_limit && place < count_limit) {
      weight_before = weight + static_cast<uint32_t>(c.weights[place]);
      low = place + 1;
    } else {
      high = place;
    }
  }
  return low;
}

// The kept set, at the front of the candidates; returns its size.
BATON_INLINE int Keep(const DrawRow& row, F32x16 inverse_t, float z_max,
                      Candidates* c) {
  const float lowest =
      row.min_p > 0 ? z_max + FirstLane(Log(Set(row.min_p))) : kMinusInfinity;
  const bool limits_weight = row.top_p < 1;
  const bool limits_count =
      row.top_k > 0 && row.top_k < static_cast<uint32_t>(row.vocab);
  uint64_t weight_limit = ~uint64_t{0};
  if (limits_weight) {
    weight_limit = WeightLimit(row.top_p, SumWeights(row, inverse_t, z_max));
  }
  const int count_limit =
      limits_count ? static_cast<int>(row.top_k) : row.vocab;
  // Mostly, the kept ones are near the maximum: look there first.
  for (float reach = 4; reach <= 16; reach *= 2) {
    if (!limits_weight && !limits_count) break;
    if (z_max - reach <= lowest) break;
    Collect(row, inverse_t, z_max, z_max - reach, c);
    if ((limits_weight && c->total_weight > weight_limit) ||
        (limits_count && c->count >= count_limit)) {
      return SelectPrefix(*c, weight_limit, count_limit);
    }
  }
  Collect(row, inverse_t, z_max, lowest, c);
  if (!limits_weight && !limits_count) return c->count;
  return SelectPrefix(*c, weight_limit, count_limit);
}

BATON_INLINE uint32_t DrawFromKept(const DrawRow& row, const Candidates& c,
                                   int kept, F32x16 inverse_t) {
  Draw best;
  for (int i = 0; i < kept; i += kLanes) {
    const int lanes = LanesFrom(i, kept);
    float logits[kLanes];
    int32_t ids[kLanes] = {};
    for (int j = 0; j < kLanes; ++j) {
      if (j < lanes) ids[j] = c.ids[i + j];
      logits[j] = j < lanes ? row.logits[ids[j]] : kMinusInfinity;
    }
    OfferListed(row, Load(ids), Load(logits) * inverse_t, &best);
  }
  return best.token;
}

// --- The kept set, written out ----------------------------------------------

BATON_INLINE void FillKept(const DrawRow& row) {
  const F32x16 nothing = Set(kMinusInfinity);
  for (int i = 0; i < row.vocab; i += kLanes) {
    StorePartial(row.kept + i, nothing, LanesFrom(i, row.vocab));
  }
}

BATON_INLINE void KeepOne(const DrawRow& row, int token) {
  const float logit = row.logits[token];
  FillKept(row);
  row.kept[token] = logit;
}

BATON_INLINE void KeepAll(const DrawRow& row, F32x16 inverse_t) {
  for (int i = 0; i < row.vocab; i += kLanes) {
    const int lanes = LanesFrom(i, row.vocab);
    StorePartial(row.kept + i, LoadPartial(row.logits + i, lanes) * inverse_t,
                 lanes);
  }
}

BATON_INLINE void KeepCandidates(const DrawRow& row, const Candidates& c,
                                 int kept) {
  FillKept(row);
  for (int i = 0; i < kept; i += kLanes) {
    const int lanes = LanesFrom(i, kept);
    float z[kLanes];
    Store(z, FromOrderedBits(Load(c.keys + i)));
    for (int j = 0; j < lanes; ++j) row.kept[c.ids[i + j]] = z[j];
  }
}

}  // namespace

void DrawKernel(DrawRow& row) {
  row.max = MaxOf(row.logits, row.vocab);
  const int argmax = IndexOf(row.max, row.logits, row.vocab);
  const F32x16 inverse_t = Set(1.0f / row.temperature);
  const float z_max = FirstLane(Set(row.logits[argmax]) * inverse_t);
  if (row.temperature == 0 || !IsFinite(z_max)) {
    row.token_id = static_cast<uint32_t>(argmax);
    if (row.kept != nullptr) KeepOne(row, argmax);
    return;
  }
  const bool keeps_all =
      row.top_p >= 1 && row.min_p <= 0 &&
      (row.top_k == 0 || row.top_k >= static_cast<uint32_t>(row.vocab));
  if (keeps_all) {
    row.token_id = DrawFromAll(row, argmax, inverse_t);
    if (row.kept != nullptr) KeepAll(row, inverse_t);
    return;
  }
  const int size = row.vocab + kLanes;
  Candidates candidates = {row.scratch, row.scratch + size,
                           row.scratch + 2 * size, 0, 0};
  const int kept = Keep(row, inverse_t, z_max, &candidates);
  row.token_id = DrawFromKept(row, candidates, kept, inverse_t);
  if (row.kept != nullptr) KeepCandidates(row, candidates, kept);
}

}  // namespace baton::BATON_ISA_NAMESPACE
