// What the processes of one expert-parallel group say to each other while they
// find each other, agree, and notice a death.
//
//   frame    := length:u32 message{length}
//   message  := 0x4742:u16 version:u8 kind:u8 body
//   hello    := fingerprint:bytes options ep_size:u32 last_epoch:u64 member
//   options  := count:u32 (name:bytes value:bytes){count}
//   refused  := field:bytes reason:bytes
//   formed   := epoch:u64 count:u32 member{count}
//   member   := rank_offset:u32 local_ranks:u32 link_address:bytes
//               transport_address:bytes host_id:bytes incarnation:u64
//   link     := epoch:u64 rank_offset:u32 incarnation:u64
//   ready    := epoch:u64
//   start    := epoch:u64
//   ending   := epoch:u64 ranks reason:bytes
//   ranks    := count:u32 rank:u32{count}
//   bytes    := length:u32 octet{length}
// Integers are unsigned and little-endian. A message with anything else, with
// anything left over, or above a limit below, is no message. A message of
// another version is known as such, and a refusal is read whatever its version.
#ifndef BATON_COMM_GROUP_MESSAGE_H_
#define BATON_COMM_GROUP_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace baton {

inline constexpr uint8_t kGroupProtocolVersion = 1;

inline constexpr uint32_t kMaxGroupRanks = 1024;
inline constexpr size_t kMaxGroupOptions = 64;
inline constexpr size_t kMaxGroupTextBytes = 1024;  // Names, values, reasons.
inline constexpr size_t kMaxTransportAddressBytes = 16 << 10;
// Of the frame of any message but Formed, its length included.
inline constexpr size_t kMaxGroupFrameBytes = 256 << 10;
inline constexpr size_t kMaxFormedFrameBytes = 32 << 20;

// Must be the same on all processes of the group; `name` is the flag's.
struct GroupOption {
  std::string name = {};
  std::string value = {};

  friend bool operator==(const GroupOption&, const GroupOption&) = default;
};

// One process of the group: the ranks [rank_offset, rank_offset + local_ranks).
struct GroupMember {
  uint32_t rank_offset = 0;
  uint32_t local_ranks = 1;
  std::string link_address = {};       // host:port where peers connect.
  std::string transport_address = {};  // Opaque: a UCX worker's.
  std::string host_id = {};            // See ReadHostId.
  uint64_t incarnation = 0;            // Drawn at the start of the process.

  friend bool operator==(const GroupMember&, const GroupMember&) = default;
};

struct GroupHello {
  std::string fingerprint = {};
  std::vector<GroupOption> options = {};
  uint32_t ep_size = 1;
  uint64_t last_epoch = 0;  // The newest that it saw.
  GroupMember member = {};
};
struct GroupRefused {
  std::string field = {};
  std::string reason = {};
};
struct GroupFormed {
  uint64_t epoch = 0;
  std::vector<GroupMember> members = {};  // By rank_offset.
};
struct GroupLinkHello {
  uint64_t epoch = 0;
  uint32_t rank_offset = 0;
  uint64_t incarnation = 0;
};
struct GroupReady {
  uint64_t epoch = 0;
};
struct GroupStart {
  uint64_t epoch = 0;
};
struct GroupEpochEnding {
  uint64_t epoch = 0;
  std::vector<uint32_t> ranks = {};  // Lost, or suspected.
  std::string reason = {};
};
// Read only: a message of a version that is not ours.
struct GroupForeignVersion {
  uint8_t version = 0;
};

using GroupMessage =
    std::variant<GroupHello, GroupRefused, GroupFormed, GroupLinkHello,
                 GroupReady, GroupStart, GroupEpochEnding, GroupForeignVersion>;

// REQUIRES: within the limits, and not GroupForeignVersion.
std::string EncodeGroupMessage(const GroupMessage& message);
// Nothing for what is not a message. Allocates no more than `bytes` has.
std::optional<GroupMessage> DecodeGroupMessage(std::string_view bytes);

// The message with its length.
std::string EncodeGroupFrame(const GroupMessage& message);

// Cuts a stream of bytes into messages. Thread-compatible.
class GroupFrameReader {
 public:
  explicit GroupFrameReader(size_t max_frame_bytes)
      : max_frame_bytes_(max_frame_bytes) {}

  void Append(std::string_view bytes);
  // The next whole message; nothing if it isn't there yet, or failed().
  std::optional<GroupMessage> Next();
  // A frame was too long or no message: the stream is of no more use.
  bool failed() const { return failed_; }

 private:
  const size_t max_frame_bytes_;
  std::string bytes_;
  size_t read_ = 0;  // Of bytes_.
  bool failed_ = false;
};

}  // namespace baton

#endif  // BATON_COMM_GROUP_MESSAGE_H_
