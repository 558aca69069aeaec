// Sampling in double precision, by sorting.
#ifndef BATON_KERNELS_REFERENCE_SAMPLE_REFERENCE_H_
#define BATON_KERNELS_REFERENCE_SAMPLE_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "kernels/sample.h"

namespace baton {

struct ReferenceLogprob {
  uint32_t token_id = 0;
  double logprob = 0;
};

struct ReferenceSampleResult {
  uint32_t token_id = 0;
  double logprob = 0;          // Of the unmodified logits.
  double logprob_kept = 0;     // Of the kept set.
  std::vector<uint32_t> kept;  // In falling order of z.
  // How near float arithmetic could come to another result: the lead of the
  // drawn token over the next, and the distance of a truncation's edge, as a
  // part of its threshold.
  double draw_margin = 0;
  double edge_margin = 0;
  // All tokens above -infinity, falling.
  std::vector<ReferenceLogprob> ranking;
  std::vector<ReferenceLogprob> ranking_kept;
};

ReferenceSampleResult ReferenceSample(const std::vector<float>& logits,
                                      const SampleParams& params);

// The logits after bias, penalties and what is forbidden: float32, one
// operation after the other.
std::vector<float> ReferenceModifiedLogits(std::vector<float> logits,
                                           const SampleParams& params);

}  // namespace baton

#endif  // BATON_KERNELS_REFERENCE_SAMPLE_REFERENCE_H_
