// Random requests of the sampler.
#ifndef BATON_KERNELS_REFERENCE_SAMPLE_CASES_H_
#define BATON_KERNELS_REFERENCE_SAMPLE_CASES_H_

#include <cstdint>
#include <vector>

#include "kernels/reference/random_values.h"
#include "kernels/sample.h"

namespace baton {

struct SampleCase {
  std::vector<float> logits;
  SampleParams params;
  // What params borrows, once Borrowed() says so.
  std::vector<uint32_t> token_counts;
  std::vector<uint32_t> uncounted;
  std::vector<LogitBias> logit_bias;
  std::vector<uint32_t> forbidden;

  // params, with what it borrows from this case.
  SampleParams Borrowed() const;
};

// Peaked, flat, tied and masked rows, with every kind of truncation.
SampleCase RandomSampleCase(RandomValues& random);

// Adds some of: penalties, bias, forbidden tokens, alternatives.
void AddRandomModifiers(RandomValues& random, SampleCase* c);

}  // namespace baton

#endif  // BATON_KERNELS_REFERENCE_SAMPLE_CASES_H_
