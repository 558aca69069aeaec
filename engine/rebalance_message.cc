#include "engine/rebalance_message.h"

#include <cstring>

#include "base/logging.h"
#include "comm/wire.h"

namespace baton {
namespace {

// "BEXP", then the version.
constexpr uint32_t kMagic = 0x50584542;
constexpr uint8_t kVersion = 1;

// Fields that a kind doesn't have are 0.
bool HasItsFields(const RebalanceMessage& m) {
  using enum RebalanceKind;
  const bool moves = m.batch_end != 0 || m.plan_end != 0;
  switch (m.kind) {
    case kLoads:
      return m.round != 0 && m.placement == 0 && !moves;
    case kMove:
      return m.round == 0 && m.plan != 0 && m.placement != 0 &&
             m.placement <= m.batch_end && m.batch_end <= m.plan_end;
    case kFailed:
    case kAbandon:
      return m.round == 0 && m.plan != 0 && !moves && m.layer == 0 &&
             m.values.empty();
  }
  return false;
}

}  // namespace

std::string EncodeRebalance(const RebalanceMessage& message) {
  CHECK_LE(message.values.size(), kMaxRebalanceValues);
  return WireWriter()
      .Int(kMagic)
      .Int(kVersion)
      .Int(static_cast<uint8_t>(message.kind))
      .Int(message.epoch.value())
      .Int(message.round)
      .Int(message.plan)
      .Int(message.placement)
      .Int(message.batch_end)
      .Int(message.plan_end)
      .Int(message.layer)
      .Bytes({reinterpret_cast<const char*>(message.values.data()),
              message.values.size() * sizeof(uint32_t)})
      .Take();
}

std::optional<RebalanceMessage> DecodeRebalance(std::string_view bytes) {
  WireReader in(bytes);
  if (in.Int<uint32_t>() != kMagic || in.Int<uint8_t>() != kVersion) {
    return std::nullopt;
  }
  RebalanceMessage message;
  message.kind = static_cast<RebalanceKind>(in.Int<uint8_t>());
  message.epoch = EpochId(in.Int<uint64_t>());
  message.round = in.Int<uint64_t>();
  message.plan = in.Int<uint64_t>();
  message.placement = in.Int<uint64_t>();
  message.batch_end = in.Int<uint64_t>();
  message.plan_end = in.Int<uint64_t>();
  message.layer = in.Int<uint32_t>();
  const std::string_view values = in.Bytes();
  if (!in.done() || values.size() % sizeof(uint32_t) != 0 ||
      values.size() / sizeof(uint32_t) > kMaxRebalanceValues) {
    return std::nullopt;
  }
  message.values.resize(values.size() / sizeof(uint32_t));
  if (!values.empty()) {
    std::memcpy(message.values.data(), values.data(), values.size());
  }
  if (!HasItsFields(message)) return std::nullopt;
  return message;
}

}  // namespace baton
