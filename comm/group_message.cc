#include "comm/group_message.h"

#include "base/logging.h"
#include "comm/wire.h"

namespace baton {
namespace {

constexpr uint16_t kMagic = 0x4742;
// So that the next epoch is never 0.
constexpr uint64_t kMaxEpoch = uint64_t{1} << 62;
constexpr size_t kLengthBytes = sizeof(uint32_t);

// The kind of a message is its place in the variant, plus one.
enum class Kind : uint8_t {
  kHello = 1,
  kRefused,
  kFormed,
  kLink,
  kReady,
  kStart,
  kEnding,
};

void WriteMember(const GroupMember& m, WireWriter* out) {
  out->Int(m.rank_offset)
      .Int(m.local_ranks)
      .Bytes(m.link_address)
      .Bytes(m.transport_address)
      .Bytes(m.host_id)
      .Int(m.incarnation);
}

void Write(const GroupHello& m, WireWriter* out) {
  out->Bytes(m.fingerprint).Int(static_cast<uint32_t>(m.options.size()));
  for (const GroupOption& option : m.options) {
    out->Bytes(option.name).Bytes(option.value);
  }
  out->Int(m.ep_size).Int(m.last_epoch);
  WriteMember(m.member, out);
}
void Write(const GroupRefused& m, WireWriter* out) {
  out->Bytes(m.field).Bytes(m.reason);
}
void Write(const GroupFormed& m, WireWriter* out) {
  out->Int(m.epoch).Int(static_cast<uint32_t>(m.members.size()));
  for (const GroupMember& member : m.members) WriteMember(member, out);
}
void Write(const GroupLinkHello& m, WireWriter* out) {
  out->Int(m.epoch).Int(m.rank_offset).Int(m.incarnation);
}
void Write(const GroupReady& m, WireWriter* out) { out->Int(m.epoch); }
void Write(const GroupStart& m, WireWriter* out) { out->Int(m.epoch); }
void Write(const GroupEpochEnding& m, WireWriter* out) {
  out->Int(m.epoch).Int(static_cast<uint32_t>(m.ranks.size()));
  for (const uint32_t rank : m.ranks) out->Int(rank);
  out->Bytes(m.reason);
}
void Write(const GroupForeignVersion&, WireWriter*) {
  LOG(FATAL) << "a message of another version is never sent";
}

// Reads with limits: after the first excess, ok() is false.
class GroupReader {
 public:
  explicit GroupReader(std::string_view bytes) : in_(bytes) {}

  template <typename T>
  T Int() {
    return in_.Int<T>();
  }
  uint64_t Epoch() {
    const auto epoch = in_.Int<uint64_t>();
    ok_ &= epoch <= kMaxEpoch;
    return epoch;
  }
  std::string Text(size_t limit = kMaxGroupTextBytes) {
    const std::string_view bytes = in_.Bytes();
    ok_ &= bytes.size() <= limit;
    return ok_ ? std::string(bytes) : std::string();
  }
  // Of elements that take at least `bytes_each`; 0 if they cannot be there.
  uint32_t Count(size_t limit, size_t bytes_each) {
    const auto count = in_.Int<uint32_t>();
    ok_ &= count <= limit && count * bytes_each <= in_.rest().size();
    return ok_ ? count : 0;
  }
  bool done() const { return ok_ && in_.done(); }

 private:
  WireReader in_;
  bool ok_ = true;
};

GroupMember ReadMember(GroupReader* in) {
  GroupMember m;
  m.rank_offset = in->Int<uint32_t>();
  m.local_ranks = in->Int<uint32_t>();
  m.link_address = in->Text();
  m.transport_address = in->Text(kMaxTransportAddressBytes);
  m.host_id = in->Text();
  m.incarnation = in->Int<uint64_t>();
  return m;
}

GroupHello ReadHello(GroupReader* in) {
  GroupHello m;
  m.fingerprint = in->Text();
  const uint32_t count = in->Count(kMaxGroupOptions, 2 * kLengthBytes);
  for (uint32_t i = 0; i < count; ++i) {
    std::string name = in->Text();
    m.options.push_back({std::move(name), in->Text()});
  }
  m.ep_size = in->Int<uint32_t>();
  m.last_epoch = in->Epoch();
  m.member = ReadMember(in);
  return m;
}

GroupFormed ReadFormed(GroupReader* in) {
  constexpr size_t kMinMemberBytes = 2 * 4 + 3 * kLengthBytes + 8;
  GroupFormed m;
  m.epoch = in->Epoch();
  const uint32_t count = in->Count(kMaxGroupRanks, kMinMemberBytes);
  for (uint32_t i = 0; i < count; ++i) m.members.push_back(ReadMember(in));
  return m;
}

GroupLinkHello ReadLink(GroupReader* in) {
  GroupLinkHello m;
  m.epoch = in->Epoch();
  m.rank_offset = in->Int<uint32_t>();
  m.incarnation = in->Int<uint64_t>();
  return m;
}

GroupEpochEnding ReadEnding(GroupReader* in) {
  GroupEpochEnding m;
  m.epoch = in->Epoch();
  const uint32_t count = in->Count(kMaxGroupRanks, sizeof(uint32_t));
  for (uint32_t i = 0; i < count; ++i) m.ranks.push_back(in->Int<uint32_t>());
  m.reason = in->Text();
  return m;
}

GroupRefused ReadRefused(GroupReader* in) {
  std::string field = in->Text();
  return {std::move(field), in->Text()};
}

std::optional<GroupMessage> ReadBody(uint8_t kind, GroupReader* in) {
  switch (static_cast<Kind>(kind)) {
    case Kind::kHello:
      return ReadHello(in);
    case Kind::kRefused:
      return ReadRefused(in);
    case Kind::kFormed:
      return ReadFormed(in);
    case Kind::kLink:
      return ReadLink(in);
    case Kind::kReady:
      return GroupReady{in->Epoch()};
    case Kind::kStart:
      return GroupStart{in->Epoch()};
    case Kind::kEnding:
      return ReadEnding(in);
  }
  return std::nullopt;
}

}  // namespace

std::string EncodeGroupMessage(const GroupMessage& message) {
  WireWriter out;
  out.Int(kMagic)
      .Int(kGroupProtocolVersion)
      .Int(static_cast<uint8_t>(message.index() + 1));
  std::visit([&out](const auto& m) { Write(m, &out); }, message);
  return out.Take();
}

std::optional<GroupMessage> DecodeGroupMessage(std::string_view bytes) {
  GroupReader in(bytes);
  if (in.Int<uint16_t>() != kMagic) return std::nullopt;
  const auto version = in.Int<uint8_t>();
  const auto kind = in.Int<uint8_t>();
  if (version == 0 || kind == 0) return std::nullopt;
  if (version != kGroupProtocolVersion &&
      kind != static_cast<uint8_t>(Kind::kRefused)) {
    return GroupForeignVersion{version};
  }
  std::optional<GroupMessage> message = ReadBody(kind, &in);
  if (!in.done()) return std::nullopt;
  return message;
}

std::string EncodeGroupFrame(const GroupMessage& message) {
  WireWriter out;
  out.Bytes(EncodeGroupMessage(message));
  return out.Take();
}

void GroupFrameReader::Append(std::string_view bytes) {
  if (failed_) return;
  bytes_.erase(0, read_);
  read_ = 0;
  bytes_.append(bytes);
}

std::optional<GroupMessage> GroupFrameReader::Next() {
  const std::string_view rest = std::string_view(bytes_).substr(read_);
  if (failed_ || rest.size() < kLengthBytes) return std::nullopt;
  const auto length = WireReader(rest).Int<uint32_t>();
  if (length > max_frame_bytes_ - kLengthBytes) {
    failed_ = true;
    return std::nullopt;
  }
  if (rest.size() - kLengthBytes < length) return std::nullopt;
  std::optional<GroupMessage> message =
      DecodeGroupMessage(rest.substr(kLengthBytes, length));
  read_ += kLengthBytes + length;
  failed_ = !message.has_value();
  return message;
}

}  // namespace baton
