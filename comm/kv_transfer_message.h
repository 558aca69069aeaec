// The control messages between an exporter and an importer of KV.
//
//   message  := 0x4b42:u16 version:u8 kind:u8 body
//   open     := export:u64 token:u64 mode:u8 first_block:u32 num_blocks:u32
//               block_bytes:u64 first_tag:u64 max_in_flight:u32 checksums:u8
//               address:bytes
//   readable := token:u64 num_blocks:u32 count:u32 checksum:u64{count}
//   tail     := token:u64 tail:bytes
//   done     := export:u64 token:u64       the importer has everything
//   cancel   := export:u64 token:u64       the importer gives up
//   ended    := token:u64                  the exporter refuses, or gives up
//   bytes    := length:u32 octet{length}
// Integers are unsigned and little-endian. A message with anything else, or
// with anything left over, is no message. Every one may be lost, repeated or
// late: each says a state, none a change.
#ifndef BATON_COMM_KV_TRANSFER_MESSAGE_H_
#define BATON_COMM_KV_TRANSFER_MESSAGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "comm/kv_transfer.h"

namespace baton {

enum class KvTransferMode : uint8_t {
  kPull = 1,  // The importer copies from the exporter's mapped region.
  kPush = 2,  // The exporter sends block i of the handle under first_tag + i.
};

// The token is the importer's secret name of the transfer.
struct KvOpenMessage {
  ExportId export_id;
  uint64_t token = 0;
  KvTransferMode mode = KvTransferMode::kPull;
  uint32_t first_block = 0;
  uint32_t num_blocks = 0;  // Of the whole handle.
  uint64_t block_bytes = 0;
  uint64_t first_tag = 0;
  uint32_t max_in_flight = 0;
  bool checksums = false;  // Blocks are readable once they have theirs.
  std::string address;
};
struct KvReadableMessage {
  uint64_t token = 0;
  uint32_t num_blocks = 0;
  // Of blocks [first_block, num_blocks), if the open asked for them.
  std::vector<uint64_t> checksums = {};
};
struct KvTailMessage {
  uint64_t token = 0;
  std::string tail;
};
struct KvDoneMessage {
  ExportId export_id;
  uint64_t token = 0;
};
struct KvCancelMessage {
  ExportId export_id;
  uint64_t token = 0;
};
struct KvEndedMessage {
  uint64_t token = 0;
};

using KvTransferMessage =
    std::variant<KvOpenMessage, KvReadableMessage, KvTailMessage, KvDoneMessage,
                 KvCancelMessage, KvEndedMessage>;

std::string EncodeKvTransferMessage(const KvTransferMessage& message);
// Nothing for what is not a message. Allocates no more than `bytes` has.
std::optional<KvTransferMessage> DecodeKvTransferMessage(
    std::string_view bytes);

}  // namespace baton

#endif  // BATON_COMM_KV_TRANSFER_MESSAGE_H_
