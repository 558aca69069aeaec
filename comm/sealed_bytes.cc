#include "comm/sealed_bytes.h"

#include <cstdint>
#include <cstring>

namespace baton {
namespace {

constexpr std::string_view kMagic = "BATONSB1";

uint64_t Checksum(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : bytes) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

}  // namespace

std::string SealBytes(std::string_view payload) {
  const uint64_t checksum = Checksum(payload);
  std::string sealed(kMagic);
  sealed.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  sealed.append(payload);
  return sealed;
}

std::optional<std::string_view> UnsealBytes(std::string_view sealed) {
  constexpr size_t kHeader = kMagic.size() + sizeof(uint64_t);
  if (sealed.size() < kHeader || !sealed.starts_with(kMagic)) {
    return std::nullopt;
  }
  uint64_t checksum = 0;
  std::memcpy(&checksum, sealed.data() + kMagic.size(), sizeof checksum);
  const std::string_view payload = sealed.substr(kHeader);
  if (checksum != Checksum(payload)) return std::nullopt;
  return payload;
}

}  // namespace baton
