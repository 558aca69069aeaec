// Temperature, truncation and the seeded draw.
#ifndef BATON_KERNELS_SAMPLE_H_
#define BATON_KERNELS_SAMPLE_H_

#include <array>
#include <cstdint>
#include <span>

#include "kernels/cpu_context.h"
#include "kernels/matrix_view.h"

namespace baton {

// One row's request. Defaults: sample from the whole distribution.
struct SampleParams {
  float temperature = 1;  // 0: argmax of the logits, ties to the lower id.
  float top_p = 1;        // (0, 1]
  float min_p = 0;        // [0, 1]
  uint32_t top_k = 0;     // 0: off
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  uint64_t position =
      0;  // Absolute index of the token drawn; N after a prompt of N.
};

struct SampledToken {
  uint32_t token_id = 0;
  float logprob = 0;  // log-softmax of the unmodified logits, natural log.
};

// Row r of logits [rows, vocab] with params[r] gives out[r]: a pure function of
// the row's logits and params. The definitions are in kernels/README.md.
// REQUIRES: no NaN in logits (see CheckFinite); sizes equal logits.rows.
void Sample(const CpuContext& context, MatrixView<const float> logits,
            std::span<const SampleParams> params, std::span<SampledToken> out);

// True where row r holds no NaN and no +infinity, and at least one finite
// value.
bool RowIsSampleable(MatrixView<const float> logits, int r);

// Philox4x32-10 (Salmon et al., 2011).
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key);

}  // namespace baton

#endif  // BATON_KERNELS_SAMPLE_H_
