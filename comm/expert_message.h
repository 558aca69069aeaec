// What processes of a group that share no memory tell each other in a layer:
// token rows there, outputs back, both between boards.
//
// Ranks of a process follow each other, and so do their slots. All numbers are
// little-endian, counts u32.
//
//   tokens  := source{rank of the sender}
//   source  := num_rows counts{slot of the receiver} row{sum of counts}
//              f32{num_rows * hidden}
//   outputs := f32{hidden}{choice}    by source, slot, and order of choice
#ifndef BATON_COMM_EXPERT_MESSAGE_H_
#define BATON_COMM_EXPERT_MESSAGE_H_

#include <span>
#include <string>
#include <string_view>

#include "comm/expert_boards.h"

namespace baton {

// [first, end).
struct RankRange {
  int first = 0;
  int end = 0;
};

// The boards of one process: its own ranks', and those of others as far as it
// needs them. A view; thread-compatible.
class ExpertMessenger final {
 public:
  // boards: of each rank of the group; borrowed.
  ExpertMessenger(const ExpertGroupShape& shape,
                  std::span<const ExpertBoard> boards, RankRange local);

  // Rows of local tokens that slots of `to` work on, each once.
  std::string WriteTokens(RankRange to) const;
  // Fills the boards of `from` for the local slots. False: not such a message;
  // the boards are worth nothing then.
  bool ReadTokens(RankRange from, std::string_view message) const;

  // Outputs of local slots for tokens of `to`.
  std::string WriteOutputs(RankRange to) const;
  // The local boards then say where each output is.
  bool ReadOutputs(RankRange from, std::string_view message) const;

 private:
  struct SlotRange {
    int first = 0;
    int end = 0;
  };
  SlotRange SlotsOf(RankRange ranks) const;
  const ExpertBoard& HolderOf(int slot) const {
    return boards_[slot / shape_.slots_per_rank];
  }
  int num_choices(int source, int slot) const {
    const auto& offsets = boards_[source].choices.offsets;
    return offsets[slot + 1] - offsets[slot];
  }
  void WriteSource(int source, SlotRange slots, std::string* out) const;
  bool ReadSource(int source, std::string_view* rest) const;
  bool ReadCounts(int source, std::string_view* rest) const;

  const ExpertGroupShape shape_;
  const std::span<const ExpertBoard> boards_;
  const RankRange local_;
};

}  // namespace baton

#endif  // BATON_COMM_EXPERT_MESSAGE_H_
