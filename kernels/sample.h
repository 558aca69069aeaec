// From logits to tokens and log-probabilities: bias, penalties, temperature,
// truncation and the seeded draw.
#ifndef BATON_KERNELS_SAMPLE_H_
#define BATON_KERNELS_SAMPLE_H_

#include <array>
#include <cstdint>
#include <span>

#include "kernels/cpu_context.h"
#include "kernels/matrix_view.h"

namespace baton {

// In SampleParams::token_counts: the token is in the prompt.
inline constexpr uint32_t kPromptTokenBit = uint32_t{1} << 31;
// The most alternatives that a row can list, and the id of those it hasn't.
inline constexpr uint32_t kMaxTopLogprobs = 20;
inline constexpr uint32_t kNoToken = 0xffffffff;

struct LogitBias {
  uint32_t token_id = 0;
  float bias = 0;
};

// One row's request, of which spans and token_counts are borrowed. Defaults:
// sample from the whole distribution.
struct SampleParams {
  float temperature = 1;  // 0: argmax of the logits, ties to the lower id.
  float top_p = 1;        // (0, 1]
  float min_p = 0;        // [0, 1]
  uint32_t top_k = 0;     // 0: off
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  uint64_t position =
      0;  // Absolute index of the token drawn; N after a prompt of N.
  float repetition_penalty = 1;  // > 0; of tokens in prompt or output.
  float presence_penalty = 0;    // Of tokens in the output.
  float frequency_penalty = 0;   // For each time that they are in it.
  // [vocab], or null: no penalties. kPromptTokenBit, and how often the token
  // was generated.
  const uint32_t* token_counts = nullptr;
  // Tokens generated but not in token_counts: a verify row's drafts before it.
  std::span<const uint32_t> uncounted = {};
  // In any order, an id at most once.
  std::span<const LogitBias> logit_bias = {};
  std::span<const uint32_t> forbidden = {};  // Ids that can't be drawn.
  uint32_t num_top_logprobs = 0;             // At most kMaxTopLogprobs.
  // False: log-probabilities are of the unmodified logits. True: of the kept
  // set at the temperature, after penalties and bias.
  bool logprobs_after_truncation = false;
};

struct SampledToken {
  uint32_t token_id = 0;
  float logprob = 0;  // Natural.
};

// Row r of logits [rows, vocab] with params[r] gives out[r], and in row r of
// top [rows, kMaxTopLogprobs] its first num_top_logprobs entries: the most
// probable tokens, falling, ties by lower id; where no more are possible
// {kNoToken, -infinity}. Without top there are no lists. A pure function of the
// row's logits and params, defined in kernels/README.md. Ids of no token in
// logit_bias, forbidden and uncounted mean nothing.
// REQUIRES: no NaN in logits (see RowIsSampleable); penalties finite; a bias
// finite or -infinity, which forbids its token; sizes equal logits.rows. Should
// logits or parameters be otherwise: some token of the vocabulary all the same.
void Sample(const CpuContext& context, MatrixView<const float> logits,
            std::span<const SampleParams> params, std::span<SampledToken> out,
            std::span<SampledToken> top = {});

struct ScoreParams {
  uint32_t token_id = 0;
  uint32_t num_top_logprobs = 0;
};

// The log-probability of params[r].token_id, of the unmodified logits, and top
// as of Sample.
// REQUIRES: as Sample; token_id < vocab.
void ScoreTokens(const CpuContext& context, MatrixView<const float> logits,
                 std::span<const ScoreParams> params,
                 std::span<SampledToken> out, std::span<SampledToken> top = {});

// True where row r holds no NaN and no +infinity, and at least one finite
// value.
bool RowIsSampleable(MatrixView<const float> logits, int r);

// Philox4x32-10 (Salmon et al., 2011).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key);

}  // namespace baton

#endif  // BATON_KERNELS_SAMPLE_H_
