#include "kernels/sample.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "base/logging.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/parallel_for.h"

namespace baton {
namespace {

// Of one thread, kept from call to call, so that steady state allocates
// nothing.
struct Scratch {
  std::vector<int32_t> candidates;
  std::vector<float> logits;
};

template <typename T>
T* Sized(std::vector<T>* vector, size_t size) {
  if (vector->size() < size) vector->resize(size);
  return vector->data();
}

bool HasPenalties(const SampleParams& p) {
  return p.token_counts != nullptr &&
         (p.repetition_penalty != 1 || p.frequency_penalty != 0 ||
          p.presence_penalty != 0);
}

void Modify(const KernelTable& kernels, const SampleParams& p,
            std::span<const float> logits, float* modified) {
  kernels.modify_logits(
      {.logits = logits.data(),
       .vocab = static_cast<int>(logits.size()),
       .repetition_penalty = p.repetition_penalty,
       .presence_penalty = p.presence_penalty,
       .frequency_penalty = p.frequency_penalty,
       .token_counts = HasPenalties(p) ? p.token_counts : nullptr,
       .uncounted = p.uncounted.data(),
       .num_uncounted = static_cast<int>(p.uncounted.size()),
       .bias = p.logit_bias.data(),
       .num_bias = static_cast<int>(p.logit_bias.size()),
       .forbidden = p.forbidden.data(),
       .num_forbidden = static_cast<int>(p.forbidden.size()),
       .modified = modified});
}

// max: of the logits, or null.
SampledToken Score(const KernelTable& kernels, std::span<const float> logits,
                   const float* max, uint32_t token_id,
                   std::span<SampledToken> top) {
  ScoreRow row = {.logits = logits.data(),
                  .vocab = static_cast<int>(logits.size()),
                  .max = max,
                  .token_id = token_id,
                  .logprob = 0,
                  .num_top = static_cast<int>(top.size()),
                  .top = top.data()};
  kernels.score(row);
  return {token_id, row.logprob};
}

SampledToken SampleOne(const KernelTable& kernels, const SampleParams& p,
                       std::span<const float> logits,
                       std::span<SampledToken> top) {
  thread_local Scratch scratch;
  const int vocab = static_cast<int>(logits.size());
  const bool modifies =
      HasPenalties(p) || !p.logit_bias.empty() || !p.forbidden.empty();
  float* buffer = nullptr;
  if (modifies || p.logprobs_after_truncation) {
    buffer = Sized(&scratch.logits, logits.size());
  }
  if (modifies) Modify(kernels, p, logits, buffer);
  DrawRow row = {.logits = modifies ? buffer : logits.data(),
                 .vocab = vocab,
                 .temperature = p.temperature,
                 .top_p = p.top_p,
                 .min_p = p.min_p,
                 .top_k = p.top_k,
                 .seed = p.seed,
                 .sample_index = p.sample_index,
                 .position = p.position,
                 .scratch = Sized(&scratch.candidates, DrawScratchSize(vocab)),
                 .kept = p.logprobs_after_truncation ? buffer : nullptr,
                 .token_id = 0,
                 .max = 0};
  kernels.draw(row);
  if (row.kept != nullptr) {
    return Score(kernels, {row.kept, logits.size()}, nullptr, row.token_id,
                 top);
  }
  return Score(kernels, logits, modifies ? nullptr : &row.max, row.token_id,
               top);
}

// The list of row r of `top`, so long as asked for.
std::span<SampledToken> TopOf(std::span<SampledToken> top, int r,
                              uint32_t num_top) {
  if (top.empty()) return {};
  return top.subspan(static_cast<size_t>(r) * kMaxTopLogprobs,
                     std::min(num_top, kMaxTopLogprobs));
}

std::span<const float> RowOf(MatrixView<const float> logits, int r) {
  return {logits.row(r), static_cast<size_t>(logits.cols)};
}

void CheckSizes(MatrixView<const float> logits, size_t num_params,
                size_t num_out, size_t num_top) {
  const size_t rows = static_cast<size_t>(logits.rows);
  CHECK_GE(logits.cols, 1);
  CHECK_EQ(num_params, rows);
  CHECK_EQ(num_out, rows);
  if (num_top != 0) CHECK_EQ(num_top, rows * kMaxTopLogprobs);
}

}  // namespace

void Sample(const CpuContext& context, MatrixView<const float> logits,
            std::span<const SampleParams> params, std::span<SampledToken> out,
            std::span<SampledToken> top) {
  CheckSizes(logits, params.size(), out.size(), top.size());
  const KernelTable& kernels = KernelsFor(context.isa);
  ParallelFor(context, logits.rows, [&](int r) {
    const SampleParams& p = params[static_cast<size_t>(r)];
    out[static_cast<size_t>(r)] = SampleOne(kernels, p, RowOf(logits, r),
                                            TopOf(top, r, p.num_top_logprobs));
  });
}

void ScoreTokens(const CpuContext& context, MatrixView<const float> logits,
                 std::span<const ScoreParams> params,
                 std::span<SampledToken> out, std::span<SampledToken> top) {
  CheckSizes(logits, params.size(), out.size(), top.size());
  const KernelTable& kernels = KernelsFor(context.isa);
  ParallelFor(context, logits.rows, [&](int r) {
    const ScoreParams& p = params[static_cast<size_t>(r)];
    CHECK_LT(p.token_id, static_cast<uint32_t>(logits.cols));
    out[static_cast<size_t>(r)] =
        Score(kernels, RowOf(logits, r), nullptr, p.token_id,
              TopOf(top, r, p.num_top_logprobs));
  });
}

bool RowIsSampleable(MatrixView<const float> logits, int r) {
  const float* row = logits.row(r);
  int32_t bad = 0;
  int32_t finite = 0;
  const auto look = [&](float value) {
    const int32_t bits = std::bit_cast<int32_t>(value);
    const int32_t is_finite = (bits & 0x7fffffff) < 0x7f800000;
    const int32_t is_minus_infinity =
        bits == std::bit_cast<int32_t>(0xff800000u);
    finite |= is_finite;
    bad |= 1 ^ (is_finite | is_minus_infinity);
  };
  // Loops of a known length, for compilers to vectorise.
  constexpr int kChunk = 64;
  int i = 0;
  for (; i + kChunk <= logits.cols; i += kChunk) {
    for (int j = 0; j < kChunk; ++j) look(row[i + j]);
  }
  for (; i < logits.cols; ++i) look(row[i]);
  return bad == 0 && finite != 0;
}

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53u} * counter[0];
    const uint64_t b = uint64_t{0xcd9e8d57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(a)};
    key[0] += 0x9e3779b9u;
    key[1] += 0xbb67ae85u;
  }
  return counter;
}

}  // namespace baton
