// Moves token rows to the ranks that hold their experts, and the results back.
#ifndef BATON_COMM_EXPERT_DISPATCH_H_
#define BATON_COMM_EXPERT_DISPATCH_H_

#include <cstdint>
#include <span>

#include "kernels/matrix_view.h"

namespace baton {

// Rows that this rank's experts work on, grouped by expert: expert e has rows
// [offsets[e], offsets[e + 1]). Borrowed from the dispatch; valid to Combine().
struct ExpertRows {
  std::span<const int32_t> offsets;  // [num_local_experts + 1]
  MatrixView<const float> inputs;    // [rows, hidden]
  MatrixView<float> outputs;         // [rows, hidden], for the caller to fill
};

// One layer's exchange at a time: Dispatch, then Combine. Thread rule: called
// by the rank's device thread alone.
class ExpertDispatch {
 public:
  virtual ~ExpertDispatch() = default;

  // x [tokens, hidden]; experts [tokens, top_k] of logical expert ids.
  // REQUIRES: tokens <= the capacity given at construction.
  virtual ExpertRows Dispatch(MatrixView<const float> x,
                              MatrixView<const int32_t> experts) = 0;

  // routed [tokens * top_k, hidden]: row t * top_k + k is the output of token
  // t's k-th expert. Summing is the caller's, so that no placement changes a
  // bit.
  virtual void Combine(MatrixView<float> routed) = 0;
};

}  // namespace baton

#endif  // BATON_COMM_EXPERT_DISPATCH_H_
