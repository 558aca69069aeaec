#include "engine/kv_tail.h"

#include <bit>
#include <cmath>
#include <cstddef>

#include "absl/status/status.h"

namespace baton {
namespace {

constexpr uint32_t kVersion = 2;
constexpr size_t kHeaderBytes = 12;
constexpr size_t kEntryBytes = 12;

void AppendUint32(uint32_t value, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) {
    out->push_back(static_cast<char>(value >> shift));
  }
}

uint32_t Uint32At(std::string_view bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= uint32_t{static_cast<uint8_t>(bytes[offset + i])} << (8 * i);
  }
  return value;
}

}  // namespace

std::string EncodeKvTail(const KvTail& tail) {
  std::string bytes;
  bytes.reserve(kHeaderBytes + kEntryBytes * tail.entries.size() +
                sizeof(float) * tail.hidden.size());
  AppendUint32(kVersion, &bytes);
  AppendUint32(static_cast<uint32_t>(tail.entries.size()), &bytes);
  AppendUint32(static_cast<uint32_t>(tail.hidden.size()), &bytes);
  for (const KvTailEntry& entry : tail.entries) {
    AppendUint32(entry.sample_index, &bytes);
    AppendUint32(entry.token_id, &bytes);
    AppendUint32(std::bit_cast<uint32_t>(entry.logprob), &bytes);
  }
  for (const float value : tail.hidden) {
    AppendUint32(std::bit_cast<uint32_t>(value), &bytes);
  }
  return bytes;
}

absl::StatusOr<KvTail> DecodeKvTail(std::string_view bytes, uint32_t vocab_size,
                                    uint32_t hidden_size) {
  if (bytes.size() < kHeaderBytes || Uint32At(bytes, 0) != kVersion) {
    return absl::DataLossError("KV tail: not of version 2");
  }
  const uint32_t count = Uint32At(bytes, 4);
  if (Uint32At(bytes, 8) != hidden_size) {
    return absl::DataLossError("KV tail: hidden state of another width");
  }
  const size_t hidden_bytes = sizeof(float) * hidden_size;
  if (count > kMaxKvTailEntries ||
      bytes.size() != kHeaderBytes + kEntryBytes * count + hidden_bytes) {
    return absl::DataLossError("KV tail: its length and its count disagree");
  }
  KvTail tail;
  for (uint32_t i = 0; i < count; ++i) {
    const size_t offset = kHeaderBytes + kEntryBytes * i;
    tail.entries.push_back(
        {.sample_index = Uint32At(bytes, offset),
         .token_id = Uint32At(bytes, offset + 4),
         .logprob = std::bit_cast<float>(Uint32At(bytes, offset + 8))});
    if (tail.entries.back().token_id >= vocab_size ||
        !std::isfinite(tail.entries.back().logprob)) {
      return absl::DataLossError("KV tail: no token of this vocabulary");
    }
  }
  for (uint32_t i = 0; i < hidden_size; ++i) {
    const size_t offset = bytes.size() - hidden_bytes + sizeof(float) * i;
    tail.hidden.push_back(std::bit_cast<float>(Uint32At(bytes, offset)));
    if (!std::isfinite(tail.hidden.back())) {
      return absl::DataLossError("KV tail: hidden state is not finite");
    }
  }
  return tail;
}

}  // namespace baton
