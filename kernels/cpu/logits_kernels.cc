// Bias and penalties before a draw; log-probabilities and alternatives behind
// it.
#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/row_reduction.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/sample.h"

namespace baton::BATON_ISA_NAMESPACE {
namespace {

// --- Bias and penalties ------------------------------------------------------

// Where arithmetic overflows, the largest float; never a NaN.
BATON_INLINE F32x16 Bounded(F32x16 x) { return Min(x, Set(0x1.fffffep127f)); }

BATON_INLINE F32x16 Penalized(const LogitsRow& row, F32x16 x, I32x16 counts) {
  const I32x16 generated = counts & Set(int32_t{0x7fffffff});
  const F32x16 r = Set(row.repetition_penalty);
  const F32x16 repeated = Select(Set(0.0f) < x, x / r, x * r);
  const F32x16 less =
      (repeated - ToFloat(generated) * Set(row.frequency_penalty)) -
      Set(row.presence_penalty);
  const I32x16 none = Set(int32_t{0});
  const F32x16 seen = Bounded(Select(generated == none, repeated, less));
  return Select(counts == none, x, seen);
}

BATON_INLINE I32x16 LoadCounts(const uint32_t* counts, int lanes) {
  int32_t first[kLanes] = {};
  __builtin_memcpy(first, counts, static_cast<size_t>(lanes) * 4);
  return Load(first);
}

BATON_INLINE void PenalizeAll(const LogitsRow& row) {
  for (int i = 0; i < row.vocab; i += kLanes) {
    const int lanes = LanesFrom(i, row.vocab);
    const uint32_t* p = row.token_counts + i;
    const I32x16 counts = lanes == kLanes
                              ? Load(reinterpret_cast<const int32_t*>(p))
                              : LoadCounts(p, lanes);
    F32x16 x = LoadPartial(row.logits + i, lanes);
    // Mostly, none of sixteen tokens has been seen.
    if (MaskBits(counts == Set(int32_t{0})) != 0xffff) {
      x = Penalized(row, x, counts);
    }
    StorePartial(row.modified + i, x, lanes);
  }
}

// One token anew, from its logit: its bias, and all its counts.
BATON_INLINE void ModifyToken(const LogitsRow& row, uint32_t token,
                              float bias) {
  if (token >= static_cast<uint32_t>(row.vocab)) return;
  F32x16 x = Set(row.logits[token]);
  if (bias != 0) x = x + Set(bias);
  if (row.token_counts != nullptr) {
    uint32_t counts = row.token_counts[token];
    for (int i = 0; i < row.num_uncounted; ++i) {
      counts += row.uncounted[i] == token ? 1 : 0;
    }
    x = Penalized(row, x, Set(static_cast<int32_t>(counts)));
  }
  row.modified[token] = FirstLane(Bounded(x));
}

// --- Alternatives ------------------------------------------------------------

// The largest values above -infinity, falling, lowest id first of equals.
struct Ranking {
  float values[kMaxTopLogprobs];
  uint32_t ids[kMaxTopLogprobs];
  int limit;
  int count;
  float bar;  // What the next one must exceed.
};

BATON_INLINE void Rank(float value, uint32_t id, Ranking* top) {
  if (!(value > top->bar)) return;
  int place = top->count < top->limit ? top->count++ : top->limit - 1;
  for (; place > 0 && top->values[place - 1] < value; --place) {
    top->values[place] = top->values[place - 1];
    top->ids[place] = top->ids[place - 1];
  }
  top->values[place] = value;
  top->ids[place] = id;
  if (top->count == top->limit) top->bar = top->values[top->limit - 1];
}

BATON_INLINE void RankAll(const float* x, int n, Ranking* top) {
  for (int i = 0; i < n; i += kLanes) {
    const F32x16 values = LoadOr(kMinusInfinity, x + i, LanesFrom(i, n));
    uint32_t higher = MaskBits(Set(top->bar) < values);
    for (; higher != 0; higher &= higher - 1) {
      const int at = i + __builtin_ctz(higher);
      Rank(x[at], static_cast<uint32_t>(at), top);
    }
  }
}

}  // namespace

void ModifyLogitsKernel(const LogitsRow& row) {
  if (row.token_counts != nullptr) {
    PenalizeAll(row);
    for (int i = 0; i < row.num_uncounted; ++i) {
      ModifyToken(row, row.uncounted[i], 0);
    }
  } else {
    __builtin_memcpy(row.modified, row.logits,
                     static_cast<size_t>(row.vocab) * sizeof(float));
  }
  for (int i = 0; i < row.num_bias; ++i) {
    ModifyToken(row, row.bias[i].token_id, row.bias[i].bias);
  }
  for (int i = 0; i < row.num_forbidden; ++i) {
    if (row.forbidden[i] < static_cast<uint32_t>(row.vocab)) {
      row.modified[row.forbidden[i]] = kMinusInfinity;
    }
  }
}

void ScoreKernel(ScoreRow& row) {
  const float max =
      row.max != nullptr ? *row.max : MaxOf(row.logits, row.vocab);
  Ranking top;
  top.limit = row.num_top;
  top.count = 0;
  top.bar = kMinusInfinity;
  row.logprob = kMinusInfinity;
  float log_sum = 0;
  if (IsFinite(max)) {
    log_sum = LogSumExp(row.logits, row.vocab, max);
    row.logprob = (row.logits[row.token_id] - max) - log_sum;
    if (row.num_top > 0) RankAll(row.logits, row.vocab, &top);
  }
  for (int i = 0; i < row.num_top; ++i) {
    const bool ranked = i < top.count;
    row.top[i].token_id = ranked ? top.ids[i] : kNoToken;
    row.top[i].logprob =
        ranked ? (top.values[i] - max) - log_sum : kMinusInfinity;
  }
}

}  // namespace baton::BATON_ISA_NAMESPACE
