// What processes of a group, and the ends of a KV transfer, tell each other.
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/logging.h"
#include "comm/group_message.h"
#include "comm/kv_transfer_message.h"
#include "comm/step_vote.h"
#include "engine/rebalance_message.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton {
namespace {

// The first byte of an input.
constexpr char kTransfer = 't';
constexpr char kGroup = 'g';
constexpr char kVote = 'v';
constexpr char kRebalance = 'r';

// What is read has one spelling.
void ReadTransfer(std::string_view bytes) {
  const auto message = DecodeKvTransferMessage(bytes);
  if (message.has_value()) CHECK(EncodeKvTransferMessage(*message) == bytes);
}

void ReadGroup(std::string_view bytes) {
  const auto message = DecodeGroupMessage(bytes);
  if (!message.has_value()) return;
  // A refusal is read whatever its version; a foreign message is not kept.
  if (std::holds_alternative<GroupForeignVersion>(*message)) return;
  if (std::holds_alternative<GroupRefused>(*message)) return;
  CHECK(EncodeGroupMessage(*message) == bytes);
}

// However it is cut, the same messages come.
void ReadFrames(std::string_view bytes) {
  GroupFrameReader whole(kMaxGroupFrameBytes);
  GroupFrameReader cut(kMaxGroupFrameBytes);
  whole.Append(bytes);
  int messages = 0;
  while (whole.Next().has_value()) ++messages;
  for (const char byte : bytes) {
    cut.Append(std::string_view(&byte, 1));
    while (cut.Next().has_value()) --messages;
  }
  CHECK_EQ(messages, 0);
  CHECK_EQ(whole.failed(), cut.failed());
}

void ReadVote(std::string_view bytes) {
  const auto message = DecodeVote(bytes);
  if (message.has_value()) CHECK(EncodeVote(*message) == bytes);
}

void ReadRebalance(std::string_view bytes) {
  const auto message = DecodeRebalance(bytes);
  if (message.has_value()) CHECK(EncodeRebalance(*message) == bytes);
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  const auto add = [&](char kind, const std::string& message) {
    seeds.push_back(kind + message);
  };
  for (const KvTransferMessage& message : std::vector<KvTransferMessage>{
           KvOpenMessage{.export_id = ExportId(3),
         .token = 7,
         .num_blocks = 4,
         .block_bytes = 64,
         .max_in_flight = 2,
         .address = "somewhere"},
           KvReadableMessage{.token = 7, .num_blocks = 2, .checksums = {5, 6}},
           KvTailMessage{.token = 7, .tail = "tail"},
           KvDoneMessage{.export_id = ExportId(3), .token = 7},
           KvCancelMessage{.export_id = ExportId(3), .token = 7},
           KvEndedMessage{.token = 7}}) {
    add(kTransfer, EncodeKvTransferMessage(message));
  }
  const GroupMember member = {.rank_offset = 4,
                              .local_ranks = 4,
                              .link_address = "127.0.0.1:7000",
                              .transport_address = "opaque",
                              .host_id = "host",
                              .incarnation = 9};
  for (const GroupMessage& message : std::vector<GroupMessage>{
           GroupHello{.fingerprint = "f",
         .options = {{"ep_size", "8"}, {"watchdog", "5s"}},
         .ep_size = 8,
         .last_epoch = 2,
         .member = member},
           GroupRefused{.field = "ep_size", .reason = "8 is not 4"},
           GroupFormed{.epoch = 3, .members = {member, member}},
           GroupLinkHello{.epoch = 3, .rank_offset = 4, .incarnation = 9},
           GroupReady{.epoch = 3}, GroupStart{.epoch = 3},
           GroupEpochEnding{.epoch = 3, .ranks = {4, 5}, .reason = "gone"}}) {
    add(kGroup, EncodeGroupMessage(message));
    add(kGroup, EncodeGroupFrame(message) + EncodeGroupFrame(message));
  }
  const VoteMessage ballot = {.epoch = EpochId(1),
                              .step = StepId(5),
                              .process = 1,
                              .ballot = {.num_ranks = 4, .decode_rows = 3}};
  add(kVote, EncodeVote(ballot));
  VoteMessage confirmation = ballot;
  confirmation.ballot = {};
  confirmation.is_confirmation = confirmation.got_prefill = true;
  add(kVote, EncodeVote(confirmation));
  for (const RebalanceKind kind :
       {RebalanceKind::kLoads, RebalanceKind::kMove, RebalanceKind::kFailed,
        RebalanceKind::kAbandon}) {
    add(kRebalance, EncodeRebalance({.kind = kind,
                                     .epoch = EpochId(1),
                                     .round = 2,
                                     .plan = 3,
                                     .placement = 4,
                                     .batch_end = 5,
                                     .plan_end = 6,
                                     .layer = 7,
                                     .values = {1, 2, 3}}));
  }
  return seeds;
}

void FuzzOne(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::string_view message = bytes.substr(1);
  switch (bytes.front()) {
    case kTransfer:
      return ReadTransfer(message);
    case kGroup:
      ReadGroup(message);
      return ReadFrames(message);
    case kVote:
      return ReadVote(message);
    case kRebalance:
      return ReadRebalance(message);
    default:
      return;
  }
}

}  // namespace baton
