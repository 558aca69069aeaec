// Sampling in double precision, by sorting.
#ifndef BATON_KERNELS_REFERENCE_SAMPLE_REFERENCE_H_
#define BATON_KERNELS_REFERENCE_SAMPLE_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "kernels/sample.h"

namespace baton {

struct ReferenceSampleResult {
  uint32_t token_id = 0;
  double logprob = 0;
  std::vector<uint32_t> kept;  // In falling order of z.
  // How near float arithmetic could come to another result: the lead of the
  // drawn token over the next, and the distance of a truncation's edge, as a
  // part of its threshold.
  double draw_margin = 0;
  double edge_margin = 0;
};

ReferenceSampleResult ReferenceSample(const std::vector<float>& logits,
                                      const SampleParams& params);

}  // namespace baton

#endif  // BATON_KERNELS_REFERENCE_SAMPLE_REFERENCE_H_
