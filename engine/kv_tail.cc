#include "engine/kv_tail.h"

#include <bit>
#include <cmath>
#include <cstddef>

#include "absl/status/status.h"

namespace baton {
namespace {

constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 8;
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

std::string EncodeKvTail(const std::vector<KvTailEntry>& entries) {
  std::string bytes;
  bytes.reserve(kHeaderBytes + kEntryBytes * entries.size());
  AppendUint32(kVersion, &bytes);
  AppendUint32(static_cast<uint32_t>(entries.size()), &bytes);
  for (const KvTailEntry& entry : entries) {
    AppendUint32(entry.sample_index, &bytes);
    AppendUint32(entry.token_id, &bytes);
    AppendUint32(std::bit_cast<uint32_t>(entry.logprob), &bytes);
  }
  return bytes;
}

absl::StatusOr<std::vector<KvTailEntry>> DecodeKvTail(std::string_view bytes,
                                                      uint32_t vocab_size) {
  if (bytes.size() < kHeaderBytes || Uint32At(bytes, 0) != kVersion) {
    return absl::DataLossError("KV tail: not of version 1");
  }
  const uint32_t count = Uint32At(bytes, 4);
  if (count > kMaxKvTailEntries ||
      bytes.size() != kHeaderBytes + kEntryBytes * count) {
    return absl::DataLossError("KV tail: its length and its count disagree");
  }
  std::vector<KvTailEntry> entries(count);
  for (uint32_t i = 0; i < count; ++i) {
    const size_t offset = kHeaderBytes + kEntryBytes * i;
    entries[i] = {.sample_index = Uint32At(bytes, offset),
                  .token_id = Uint32At(bytes, offset + 4),
                  .logprob = std::bit_cast<float>(Uint32At(bytes, offset + 8))};
    if (entries[i].token_id >= vocab_size ||
        !std::isfinite(entries[i].logprob)) {
      return absl::DataLossError("KV tail: no token of this vocabulary");
    }
  }
  return entries;
}

}  // namespace baton
