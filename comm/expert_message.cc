#include "comm/expert_message.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/matrix_view.h"

namespace baton {
namespace {

void Append(uint32_t value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

void AppendRow(const float* row, int hidden, std::string* out) {
  out->append(reinterpret_cast<const char*>(row),
              static_cast<size_t>(hidden) * sizeof(float));
}

// False: there are not as many bytes.
bool Take(size_t size, void* out, std::string_view* rest) {
  if (size > rest->size()) return false;
  std::memcpy(out, rest->data(), size);
  rest->remove_prefix(size);
  return true;
}

bool TakeRows(MatrixView<float> rows, std::string_view* rest) {
  return Take(static_cast<size_t>(rows.rows) * rows.cols * sizeof(float),
              rows.data, rest);
}

}  // namespace

ExpertMessenger::ExpertMessenger(const ExpertGroupShape& shape,
                                 std::span<const ExpertBoard> boards,
                                 RankRange local)
    : shape_(shape), boards_(boards), local_(local) {}

ExpertMessenger::SlotRange ExpertMessenger::SlotsOf(RankRange ranks) const {
  return {ranks.first * shape_.slots_per_rank,
          ranks.end * shape_.slots_per_rank};
}

std::string ExpertMessenger::WriteTokens(RankRange to) const {
  std::string out;
  for (int source = local_.first; source < local_.end; ++source) {
    WriteSource(source, SlotsOf(to), &out);
  }
  return out;
}

void ExpertMessenger::WriteSource(int source, SlotRange slots,
                                  std::string* out) const {
  const ExpertBoard& board = boards_[source];
  const auto& [offsets, choices] = board.choices;
  const int top_k = shape_.experts.top_k;
  std::vector<int32_t> row_of(static_cast<size_t>(shape_.experts.max_tokens),
                              -1);
  std::vector<int32_t> tokens;
  for (int i = offsets[slots.first]; i < offsets[slots.end]; ++i) {
    int32_t& row = row_of[choices[i] / top_k];
    if (row >= 0) continue;
    row = static_cast<int32_t>(tokens.size());
    tokens.push_back(choices[i] / top_k);
  }
  Append(static_cast<uint32_t>(tokens.size()), out);
  for (int slot = slots.first; slot < slots.end; ++slot) {
    Append(static_cast<uint32_t>(num_choices(source, slot)), out);
  }
  for (int i = offsets[slots.first]; i < offsets[slots.end]; ++i) {
    Append(static_cast<uint32_t>(row_of[choices[i] / top_k]), out);
  }
  for (const int32_t token : tokens) {
    AppendRow(board.x.row(token), board.x.cols, out);
  }
}

bool ExpertMessenger::ReadTokens(RankRange from,
                                 std::string_view message) const {
  for (int source = from.first; source < from.end; ++source) {
    if (!ReadSource(source, &message)) return false;
  }
  return message.empty();
}

bool ExpertMessenger::ReadSource(int source, std::string_view* rest) const {
  const ExpertBoard& board = boards_[source];
  const SlotRange slots = SlotsOf(local_);
  uint32_t num_rows = 0;
  if (!Take(sizeof num_rows, &num_rows, rest) ||
      num_rows > static_cast<uint32_t>(shape_.experts.max_tokens) ||
      !ReadCounts(source, rest)) {
    return false;
  }
  for (int i = 0; i < board.choices.offsets[slots.end]; ++i) {
    uint32_t row = 0;
    if (!Take(sizeof row, &row, rest) || row >= num_rows) return false;
    // As if it were that token's first choice.
    board.choices.choices[i] = static_cast<int32_t>(row) * shape_.experts.top_k;
  }
  return TakeRows(Rows(board.x, 0, static_cast<int>(num_rows)), rest);
}

bool ExpertMessenger::ReadCounts(int source, std::string_view* rest) const {
  const std::span<int32_t> offsets = boards_[source].choices.offsets;
  const SlotRange slots = SlotsOf(local_);
  // What no sender exceeds, or there would be no place for its rows.
  const auto max_rows =
      static_cast<uint32_t>(shape_.max_rows() / shape_.num_ranks);
  uint32_t of_rank = 0;
  offsets[slots.first] = 0;
  for (int slot = slots.first; slot < slots.end; ++slot) {
    if (slot % shape_.slots_per_rank == 0) of_rank = 0;
    uint32_t count = 0;
    if (!Take(sizeof count, &count, rest) || count > max_rows - of_rank) {
      return false;
    }
    of_rank += count;
    offsets[slot + 1] = offsets[slot] + static_cast<int32_t>(count);
  }
  return static_cast<size_t>(offsets[slots.end]) <=
         boards_[source].choices.choices.size();
}

std::string ExpertMessenger::WriteOutputs(RankRange to) const {
  std::string out;
  const SlotRange slots = SlotsOf(local_);
  for (int source = to.first; source < to.end; ++source) {
    for (int slot = slots.first; slot < slots.end; ++slot) {
      const MatrixView<float> outputs = HolderOf(slot).outputs;
      const int first = boards_[source].first_rows[slot];
      for (int i = 0; i < num_choices(source, slot); ++i) {
        AppendRow(outputs.row(first + i), outputs.cols, &out);
      }
    }
  }
  return out;
}

bool ExpertMessenger::ReadOutputs(RankRange from,
                                  std::string_view message) const {
  const SlotRange slots = SlotsOf(from);
  std::vector<int32_t> next_row(static_cast<size_t>(from.end - from.first));
  for (int source = local_.first; source < local_.end; ++source) {
    for (int slot = slots.first; slot < slots.end; ++slot) {
      int32_t& next = next_row[slot / shape_.slots_per_rank - from.first];
      const int count = num_choices(source, slot);
      if (!TakeRows(Rows(HolderOf(slot).outputs, next, count), &message)) {
        return false;
      }
      boards_[source].first_rows[slot] = next;
      next += count;
    }
  }
  return message.empty();
}

}  // namespace baton
