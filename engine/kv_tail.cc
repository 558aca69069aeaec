#include "engine/kv_tail.h"

#include <bit>
#include <cmath>
#include <cstddef>

#include "absl/status/status.h"
#include "base/status_macros.h"

namespace baton {
namespace {

constexpr uint32_t kVersion = 3;

void AppendUint32(uint32_t value, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) {
    out->push_back(static_cast<char>(value >> shift));
  }
}

void AppendFloat(float value, std::string* out) {
  AppendUint32(std::bit_cast<uint32_t>(value), out);
}

void AppendToken(const SampledToken& token, std::string* out) {
  AppendUint32(token.token_id, out);
  AppendFloat(token.logprob, out);
}

// Reads words one after the other; past the end they are 0, and ok() false.
class WordReader {
 public:
  explicit WordReader(std::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && bytes_.empty(); }

  uint32_t Uint32() {
    ok_ = ok_ && bytes_.size() >= 4;
    if (!ok_) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) {
      value |= uint32_t{static_cast<uint8_t>(bytes_[i])} << (8 * i);
    }
    bytes_.remove_prefix(4);
    return value;
  }
  float Float() { return std::bit_cast<float>(Uint32()); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

absl::StatusOr<SampledToken> ReadToken(uint32_t vocab_size, WordReader* in) {
  SampledToken token;
  token.token_id = in->Uint32();
  token.logprob = in->Float();
  if (token.token_id >= vocab_size || !std::isfinite(token.logprob)) {
    return absl::DataLossError("KV tail: no token of this vocabulary");
  }
  return token;
}

absl::StatusOr<KvTailEntry> ReadEntry(uint32_t vocab_size, WordReader* in) {
  KvTailEntry entry;
  entry.sample_index = in->Uint32();
  ASSIGN_OR_RETURN(entry.drawn, ReadToken(vocab_size, in));
  const uint32_t num_top = in->Uint32();
  if (num_top > kMaxTopLogprobs) {
    return absl::DataLossError("KV tail: too many alternatives");
  }
  for (uint32_t i = 0; i < num_top; ++i) {
    ASSIGN_OR_RETURN(entry.top.emplace_back(), ReadToken(vocab_size, in));
  }
  return entry;
}

}  // namespace

std::string EncodeKvTail(const KvTail& tail) {
  std::string bytes;
  AppendUint32(kVersion, &bytes);
  AppendUint32(static_cast<uint32_t>(tail.entries.size()), &bytes);
  AppendUint32(static_cast<uint32_t>(tail.hidden.size()), &bytes);
  for (const KvTailEntry& entry : tail.entries) {
    AppendUint32(entry.sample_index, &bytes);
    AppendToken(entry.drawn, &bytes);
    AppendUint32(static_cast<uint32_t>(entry.top.size()), &bytes);
    for (const SampledToken& token : entry.top) AppendToken(token, &bytes);
  }
  for (const float value : tail.hidden) AppendFloat(value, &bytes);
  return bytes;
}

absl::StatusOr<KvTail> DecodeKvTail(std::string_view bytes, uint32_t vocab_size,
                                    uint32_t hidden_size) {
  WordReader in(bytes);
  if (in.Uint32() != kVersion) {
    return absl::DataLossError("KV tail: not of version 3");
  }
  const uint32_t count = in.Uint32();
  if (in.Uint32() != hidden_size) {
    return absl::DataLossError("KV tail: hidden state of another width");
  }
  if (count > kMaxKvTailEntries) {
    return absl::DataLossError("KV tail: too many entries");
  }
  KvTail tail;
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    ASSIGN_OR_RETURN(tail.entries.emplace_back(), ReadEntry(vocab_size, &in));
  }
  for (uint32_t i = 0; i < hidden_size && in.ok(); ++i) {
    tail.hidden.push_back(in.Float());
    if (!std::isfinite(tail.hidden.back())) {
      return absl::DataLossError("KV tail: hidden state is not finite");
    }
  }
  if (!in.at_end()) {
    return absl::DataLossError("KV tail: its length and its counts disagree");
  }
  return tail;
}

}  // namespace baton
