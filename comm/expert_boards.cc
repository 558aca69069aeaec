#include "comm/expert_boards.h"

#include <algorithm>

#include "base/logging.h"

namespace baton {
namespace {

constexpr size_t kAlignment = 64;

size_t RoundUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t NumChoices(const ExpertGroupShape& shape) {
  return static_cast<size_t>(shape.experts.max_tokens) * shape.experts.top_k;
}

// Hands out the parts of one board, in their order; without memory it counts.
class Parts {
 public:
  explicit Parts(std::byte* memory) : memory_(memory) {}

  template <typename T>
  std::span<T> Take(size_t count) {
    T* const first =
        memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + used_);
    used_ += RoundUp(count * sizeof(T));
    return {first, count};
  }
  size_t used() const { return used_; }

 private:
  std::byte* const memory_;
  size_t used_ = 0;
};

ExpertBoard TakeBoard(const ExpertGroupShape& shape, Parts* parts) {
  const auto slots = static_cast<size_t>(shape.num_slots());
  const int hidden = shape.experts.hidden_size;
  const auto take_rows = [&](int rows) {
    return Dense(parts->Take<float>(static_cast<size_t>(rows) * hidden).data(),
                 rows, hidden);
  };
  ExpertBoard board;
  board.choices.offsets = parts->Take<int32_t>(slots + 1);
  board.choices.choices = parts->Take<int32_t>(NumChoices(shape));
  board.first_rows = parts->Take<int32_t>(slots);
  board.x = take_rows(shape.experts.max_tokens);
  board.outputs = take_rows(shape.max_rows());
  return board;
}

size_t BoardBytes(const ExpertGroupShape& shape) {
  Parts parts(nullptr);
  TakeBoard(shape, &parts);
  return parts.used();
}

}  // namespace

int ExpertGroupShape::max_rows() const {
  return num_ranks * experts.max_tokens *
         std::min(experts.top_k, slots_per_rank);
}

size_t ExpertBoards::Bytes(const ExpertGroupShape& shape) {
  return BoardBytes(shape) * static_cast<size_t>(shape.num_ranks);
}

ExpertBoards::ExpertBoards(const ExpertGroupShape& shape, std::byte* memory)
    : shape_(shape), memory_(memory) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(memory) % kAlignment, 0u);
}

ExpertBoard ExpertBoards::board(int rank) const {
  Parts parts(memory_ + BoardBytes(shape_) * static_cast<size_t>(rank));
  return TakeBoard(shape_, &parts);
}

}  // namespace baton
