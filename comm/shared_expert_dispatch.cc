#include "comm/shared_expert_dispatch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace baton {
namespace {

// What lies at the start of the memory.
struct Control {
  int32_t shape[6];  // Zeroed: not written yet.
  GroupBarrierState barrier;
};

struct ShapeField {
  const char* name;
  int value;
};

std::vector<ShapeField> FieldsOf(const ExpertGroupShape& shape) {
  return {{"num_experts", shape.experts.num_experts},
          {"top_k", shape.experts.top_k},
          {"hidden_size", shape.experts.hidden_size},
          {"max_tokens", shape.experts.max_tokens},
          {"num_ranks", shape.num_ranks},
          {"slots_per_rank", shape.slots_per_rank}};
}

size_t ArrivalsBytes(const ExpertGroupShape& shape) {
  return sizeof(GroupBarrierArrivals) * static_cast<size_t>(shape.num_ranks);
}

size_t BoardsOffset(const ExpertGroupShape& shape) {
  return sizeof(Control) + ArrivalsBytes(shape);
}

Control* ControlOf(const SharedMemory& memory) {
  return reinterpret_cast<Control*>(memory.data());
}

GroupBarrier MakeBarrier(const ExpertExchangeOptions& options,
                         const SharedMemory& memory) {
  auto* const arrivals =
      reinterpret_cast<GroupBarrierArrivals*>(memory.data() + sizeof(Control));
  const int end =
      options.end_rank == 0 ? options.shape.num_ranks : options.end_rank;
  return {{.first_rank = options.first_rank,
           .deadline = options.deadline,
           .spins = options.spins},
          &ControlOf(memory)->barrier,
          std::span(arrivals, static_cast<size_t>(end - options.first_rank))};
}

std::vector<ExpertBoard> BoardsIn(const ExpertGroupShape& shape,
                                  const SharedMemory& memory) {
  const ExpertBoards boards(shape, memory.data() + BoardsOffset(shape));
  std::vector<ExpertBoard> all;
  for (int r = 0; r < shape.num_ranks; ++r) all.push_back(boards.board(r));
  return all;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedExpertExchange>>
SharedExpertExchange::Create(const ExpertExchangeOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<SharedMemory> memory,
                   SharedMemory::Create(BoardsOffset(options.shape) +
                                        ExpertBoards::Bytes(options.shape)));
  int32_t* field = ControlOf(*memory)->shape;
  for (const auto& [name, value] : FieldsOf(options.shape)) *field++ = value;
  return std::unique_ptr<SharedExpertExchange>(
      new SharedExpertExchange(options, std::move(memory)));
}

absl::StatusOr<std::unique_ptr<SharedExpertExchange>>
SharedExpertExchange::Open(const ExpertExchangeOptions& options,
                           const std::string& path) {
  ASSIGN_OR_RETURN(
      std::unique_ptr<SharedMemory> memory,
      SharedMemory::Open(path, BoardsOffset(options.shape) +
                                   ExpertBoards::Bytes(options.shape)));
  const int32_t* field = ControlOf(*memory)->shape;
  for (const auto& [name, value] : FieldsOf(options.shape)) {
    if (*field++ == value) continue;
    return absl::InvalidArgumentError(absl::StrCat(path, ": the group's ", name,
                                                   " is ", field[-1],
                                                   ", but here it is ", value));
  }
  return std::unique_ptr<SharedExpertExchange>(
      new SharedExpertExchange(options, std::move(memory)));
}

SharedExpertExchange::SharedExpertExchange(const ExpertExchangeOptions& options,
                                           std::unique_ptr<SharedMemory> memory)
    : options_(options),
      memory_(std::move(memory)),
      boards_(BoardsIn(options.shape, *memory_)),
      barrier_(MakeBarrier(options, *memory_)) {}

std::unique_ptr<ExpertDispatch> SharedExpertExchange::MakeDispatch(int rank) {
  CHECK_GE(rank, options_.first_rank);
  CHECK_LT(rank, options_.shape.num_ranks);
  return std::make_unique<SharedExpertDispatch>(this, rank);
}

bool SharedExpertExchange::Arrive(int rank) {
  const int member = rank - options_.first_rank;
  return bridge_ == nullptr ? barrier_.Arrive(member)
                            : barrier_.ArriveForRelease(member, bridge_);
}

SharedExpertDispatch::SharedExpertDispatch(SharedExpertExchange* exchange,
                                           int rank)
    : exchange_(exchange),
      shape_(exchange->options_.shape),
      rank_(rank),
      boards_(exchange->boards()),
      chooser_(shape_.experts, shape_.num_slots()),
      offsets_(static_cast<size_t>(shape_.slots_per_rank) + 1),
      inputs_(std::make_unique_for_overwrite<float[]>(
          static_cast<size_t>(shape_.max_rows()) *
          shape_.experts.hidden_size)) {}

ExpertRows SharedExpertDispatch::Dispatch(MatrixView<const float> x,
                                          MatrixView<const int32_t> experts,
                                          const ExpertSlots& slots) {
  CHECK_LE(x.rows, shape_.experts.max_tokens);
  CHECK_EQ(x.rows, experts.rows);
  CHECK_EQ(x.cols, shape_.experts.hidden_size);
  CHECK_EQ(experts.cols, shape_.experts.top_k);
  const ExpertBoard& mine = boards_[rank_];
  // Once ended, others may still read the layer before.
  if (!exchange_->ended()) {
    chooser_.Choose(experts, slots, rank_, mine.choices);
    for (int t = 0; t < x.rows; ++t) {
      std::copy_n(x.row(t), x.cols, mine.x.row(t));
    }
  }
  std::ranges::fill(offsets_, 0);
  const int rows = exchange_->Arrive(rank_) ? TakeRows() : 0;
  return {
      offsets_,
      slots.experts.subspan(static_cast<size_t>(rank_) * shape_.slots_per_rank,
                            static_cast<size_t>(shape_.slots_per_rank)),
      Dense<const float>(inputs_.get(), rows, x.cols),
      Rows(mine.outputs, 0, rows)};
}

int SharedExpertDispatch::TakeRows() {
  const MatrixView<float> inputs =
      Dense(inputs_.get(), shape_.max_rows(), shape_.experts.hidden_size);
  int row = 0;
  for (int s = 0; s < shape_.slots_per_rank; ++s) {
    const int slot = rank_ * shape_.slots_per_rank + s;
    for (const ExpertBoard& source : boards_) {
      const int first = source.choices.offsets[slot];
      const int end = source.choices.offsets[slot + 1];
      if (first == end) continue;
      CHECK_LE(row + end - first, inputs.rows);
      source.first_rows[slot] = row;
      for (int i = first; i < end; ++i) {
        const int token = source.choices.choices[i] / shape_.experts.top_k;
        std::copy_n(source.x.row(token), inputs.cols, inputs.row(row++));
      }
    }
    offsets_[s + 1] = row;
  }
  return row;
}

void SharedExpertDispatch::Combine(MatrixView<float> routed) {
  CHECK_EQ(routed.cols, shape_.experts.hidden_size);
  if (!exchange_->Arrive(rank_)) {
    for (int i = 0; i < routed.rows; ++i) {
      std::fill_n(routed.row(i), routed.cols, 0.0f);
    }
    return;
  }
  const ExpertBoard& mine = boards_[rank_];
  for (int slot = 0; slot < shape_.num_slots(); ++slot) {
    const int first = mine.choices.offsets[slot];
    const MatrixView<float> outputs =
        boards_[slot / shape_.slots_per_rank].outputs;
    for (int i = first; i < mine.choices.offsets[slot + 1]; ++i) {
      std::copy_n(outputs.row(mine.first_rows[slot] + i - first), routed.cols,
                  routed.row(mine.choices.choices[i]));
    }
  }
}

}  // namespace baton
