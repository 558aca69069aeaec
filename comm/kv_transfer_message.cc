#include "comm/kv_transfer_message.h"

#include "comm/wire.h"

namespace baton {
namespace {

constexpr uint16_t kMagic = 0x4b42;
constexpr uint8_t kVersion = 2;

// The kind of a message is its place in the variant, plus one.
enum class Kind : uint8_t {
  kOpen = 1,
  kReadable,
  kTail,
  kDone,
  kCancel,
  kEnded,
};

void Write(const KvOpenMessage& m, WireWriter* out) {
  out->Int(m.export_id.value())
      .Int(m.token)
      .Int(static_cast<uint8_t>(m.mode))
      .Int(m.first_block)
      .Int(m.num_blocks)
      .Int(m.block_bytes)
      .Int(m.first_tag)
      .Int(m.max_in_flight)
      .Int(static_cast<uint8_t>(m.checksums))
      .Bytes(m.address);
}
void Write(const KvReadableMessage& m, WireWriter* out) {
  out->Int(m.token)
      .Int(m.num_blocks)
      .Int(static_cast<uint32_t>(m.checksums.size()));
  for (const uint64_t checksum : m.checksums) out->Int(checksum);
}
void Write(const KvTailMessage& m, WireWriter* out) {
  out->Int(m.token).Bytes(m.tail);
}
void Write(const KvDoneMessage& m, WireWriter* out) {
  out->Int(m.export_id.value()).Int(m.token);
}
void Write(const KvCancelMessage& m, WireWriter* out) {
  out->Int(m.export_id.value()).Int(m.token);
}
void Write(const KvEndedMessage& m, WireWriter* out) { out->Int(m.token); }

bool IsMode(uint8_t mode) {
  return mode == static_cast<uint8_t>(KvTransferMode::kPull) ||
         mode == static_cast<uint8_t>(KvTransferMode::kPush);
}

std::optional<KvTransferMessage> ReadOpen(WireReader* in) {
  KvOpenMessage m;
  m.export_id = ExportId(in->Int<uint64_t>());
  m.token = in->Int<uint64_t>();
  const uint8_t mode = in->Int<uint8_t>();
  m.mode = static_cast<KvTransferMode>(mode);
  m.first_block = in->Int<uint32_t>();
  m.num_blocks = in->Int<uint32_t>();
  m.block_bytes = in->Int<uint64_t>();
  m.first_tag = in->Int<uint64_t>();
  m.max_in_flight = in->Int<uint32_t>();
  const uint8_t checksums = in->Int<uint8_t>();
  m.checksums = checksums == 1;
  m.address = in->Bytes();
  if (!IsMode(mode) || checksums > 1) return std::nullopt;
  return m;
}

std::optional<KvTransferMessage> ReadReadable(WireReader* in) {
  KvReadableMessage m;
  m.token = in->Int<uint64_t>();
  m.num_blocks = in->Int<uint32_t>();
  const uint64_t count = in->Int<uint32_t>();
  if (in->rest().size() != count * sizeof(uint64_t)) return std::nullopt;
  m.checksums.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    m.checksums.push_back(in->Int<uint64_t>());
  }
  return m;
}

std::optional<KvTransferMessage> ReadBody(uint8_t kind, WireReader* in) {
  switch (static_cast<Kind>(kind)) {
    case Kind::kOpen:
      return ReadOpen(in);
    case Kind::kReadable:
      return ReadReadable(in);
    case Kind::kTail: {
      const uint64_t token = in->Int<uint64_t>();
      return KvTailMessage{token, std::string(in->Bytes())};
    }
    case Kind::kDone: {
      const ExportId id(in->Int<uint64_t>());
      return KvDoneMessage{id, in->Int<uint64_t>()};
    }
    case Kind::kCancel: {
      const ExportId id(in->Int<uint64_t>());
      return KvCancelMessage{id, in->Int<uint64_t>()};
    }
    case Kind::kEnded:
      return KvEndedMessage{in->Int<uint64_t>()};
  }
  return std::nullopt;
}

}  // namespace

std::string EncodeKvTransferMessage(const KvTransferMessage& message) {
  WireWriter out;
  out.Int(kMagic).Int(kVersion).Int(static_cast<uint8_t>(message.index() + 1));
  std::visit([&out](const auto& m) { Write(m, &out); }, message);
  return out.Take();
}

std::optional<KvTransferMessage> DecodeKvTransferMessage(
    std::string_view bytes) {
  WireReader in(bytes);
  if (in.Int<uint16_t>() != kMagic || in.Int<uint8_t>() != kVersion) {
    return std::nullopt;
  }
  const uint8_t kind = in.Int<uint8_t>();
  std::optional<KvTransferMessage> message = ReadBody(kind, &in);
  if (!in.done()) return std::nullopt;
  return message;
}

}  // namespace baton
