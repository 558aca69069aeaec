// Moves token rows to the slots that hold their experts, and the results back.
//
// A group of ranks has num_ranks * slots_per_rank physical slots, rank r those
// in [r * slots_per_rank, (r + 1) * slots_per_rank). Each slot holds one
// logical expert, each expert one slot or more. Which, comes with each call, so
// that every layer and step may have a placement of its own.
//
// The contract is one that a device with peer memory or a communicator can
// keep: capacities are fixed at construction; nothing that a call takes or
// gives is a pointer into another rank; calls put work into the order of the
// rank's device thread, and only there does anybody wait; a lost peer makes no
// call fail, but shows in status(), and the step's results are thrown away.
#ifndef BATON_COMM_EXPERT_DISPATCH_H_
#define BATON_COMM_EXPERT_DISPATCH_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/matrix_view.h"

namespace baton {

// What a dispatch is made for.
struct ExpertShape {
  int num_experts = 0;  // Logical.
  int top_k = 0;
  int hidden_size = 0;
  int max_tokens = 0;  // Of one rank in one call.
};

// One layer's placement: a view of tables that outlive the step. The same on
// every rank of the group. No rank holds an expert twice.
struct ExpertSlots {
  std::span<const uint32_t> experts;  // [slots]: the expert in each.
  // The slots of an expert e, ascending: slots[first[e] .. first[e + 1]).
  std::span<const uint32_t> slots;  // [slots]
  std::span<const uint32_t> first;  // [experts + 1]

  std::span<const uint32_t> of(uint32_t expert) const {
    return slots.subspan(first[expert], first[expert + 1] - first[expert]);
  }
};

// Rows that this rank's experts work on, grouped by local slot: slot s has rows
// [offsets[s], offsets[s + 1]), in order of source rank and token. Borrowed
// from the dispatch; valid to Combine().
struct ExpertRows {
  std::span<const int32_t> offsets;   // [slots_per_rank + 1]
  std::span<const uint32_t> experts;  // [slots_per_rank]: logical, of the call.
  MatrixView<const float> inputs;     // [rows, hidden]
  MatrixView<float> outputs;          // [rows, hidden], for the caller to fill.
};

// One layer's exchange at a time: Dispatch, then Combine; all ranks of a group
// the same number of both, a rank without tokens too. Thread rule: called by
// the rank's device thread alone.
class ExpertDispatch {
 public:
  virtual ~ExpertDispatch() = default;

  virtual int rank() const = 0;
  virtual int num_ranks() const = 0;
  virtual int slots_per_rank() const = 0;
  // Of ExpertRows; what the caller's own buffers must hold.
  virtual int max_rows() const = 0;

  // x [tokens, hidden]; experts [tokens, top_k] of logical ids, no expert twice
  // in a row. Where an expert has replicas, they are taken in turn: the n-th
  // row that this rank sends to expert e goes to slots.of(e)[(rank + n) mod
  // their number].
  // REQUIRES: tokens <= max_tokens of the shape.
  virtual ExpertRows Dispatch(MatrixView<const float> x,
                              MatrixView<const int32_t> experts,
                              const ExpertSlots& slots) = 0;

  // routed [tokens * top_k, hidden]: row t * top_k + k is the output of token
  // t's k-th expert. Summing is the caller's, so that no placement changes a
  // bit.
  virtual void Combine(MatrixView<float> routed) = 0;

  // Not OK: the exchange has ended for good, by a lost peer, a deadline or
  // because it was told to. From then on there are no rows and `routed` is
  // zero, at once; what the running step computed is worth nothing.
  virtual absl::Status status() const = 0;
};

}  // namespace baton

#endif  // BATON_COMM_EXPERT_DISPATCH_H_
