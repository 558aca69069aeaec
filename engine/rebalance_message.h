// What the processes of a group tell each other to move experts.
//
//   message := "BEXP" version:u8 kind:u8 epoch:u64 round:u64 plan:u64
//              placement:u64 batch_end:u64 plan_end:u64 layer:u32 values
//   values  := bytes:u32 u32{bytes / 4}
//
// Fields that a kind doesn't have are 0.
#ifndef BATON_ENGINE_REBALANCE_MESSAGE_H_
#define BATON_ENGINE_REBALANCE_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group_channel.h"
#include "comm/step_ids.h"

namespace baton {

enum class RebalanceKind : uint8_t {
  kLoads = 1,  // To the leader: one layer's loads in this round.
  kMove,       // From the leader: one layer's new experts.
  kFailed,     // To the leader: an expert couldn't be loaded.
  kAbandon,    // From the leader: the plan ends at this placement.
};

struct RebalanceMessage {
  RebalanceKind kind = RebalanceKind::kLoads;
  EpochId epoch = {};
  uint64_t round = 0;  // kLoads.
  // kLoads: the newest that is over for the sender; else the one meant.
  uint64_t plan = 0;
  // A version. kMove: of this layer; kFailed, kAbandon: the last one reached.
  uint64_t placement = 0;
  // kMove: the versions of the last layer of this batch, and of the plan.
  uint64_t batch_end = 0;
  uint64_t plan_end = 0;
  uint32_t layer = 0;  // kLoads, kMove.
  // kLoads: rows by logical expert, [rows, experts], oldest first. kMove: the
  // expert in each slot.
  std::vector<uint32_t> values = {};
  friend bool operator==(const RebalanceMessage&,
                         const RebalanceMessage&) = default;
};

inline constexpr size_t kRebalanceHeaderBytes = 62;
inline constexpr size_t kMaxRebalanceValues =
    (GroupChannel::kMaxMessageBytes - kRebalanceHeaderBytes) / sizeof(uint32_t);

// REQUIRES: at most kMaxRebalanceValues.
std::string EncodeRebalance(const RebalanceMessage& message);
// Nullopt: not one of ours.
std::optional<RebalanceMessage> DecodeRebalance(std::string_view bytes);

}  // namespace baton

#endif  // BATON_ENGINE_REBALANCE_MESSAGE_H_
