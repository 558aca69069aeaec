// The memory over which the ranks of a group exchange token rows.
#ifndef BATON_COMM_EXPERT_BOARDS_H_
#define BATON_COMM_EXPERT_BOARDS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/expert_dispatch.h"
#include "comm/slot_choices.h"
#include "kernels/matrix_view.h"

namespace baton {

struct ExpertGroupShape {
  ExpertShape experts;
  int num_ranks = 1;
  int slots_per_rank = 0;

  int num_slots() const { return num_ranks * slots_per_rank; }
  // That one rank's experts may get: a token's experts are distinct, and so are
  // a rank's slots.
  int max_rows() const;
};

// One rank's. As a source it writes its tokens and which slots they go to; who
// has the slot then says which row of its outputs is the first one for this
// source. As a holder of experts it writes outputs.
//
//   board := offsets[slots + 1]:i32 choices[max_tokens * top_k]:i32
//            first_rows[slots]:i32 x[max_tokens, hidden]:f32
//            outputs[max_rows, hidden]:f32        each at a multiple of 64
struct ExpertBoard {
  SlotChoices choices;
  // [slots]: of the outputs of the slot's rank; where the slot has choices.
  std::span<int32_t> first_rows;
  MatrixView<float> x;
  MatrixView<float> outputs;
};

// A view; where what lies is a matter of the shape alone.
class ExpertBoards final {
 public:
  static size_t Bytes(const ExpertGroupShape& shape);
  // Borrows memory of so many bytes at a multiple of 64.
  ExpertBoards(const ExpertGroupShape& shape, std::byte* memory);

  ExpertBoard board(int rank) const;

 private:
  const ExpertGroupShape shape_;
  std::byte* const memory_;
};

}  // namespace baton

#endif  // BATON_COMM_EXPERT_BOARDS_H_
