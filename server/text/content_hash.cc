#include "server/text/content_hash.h"

#include <cstdint>

namespace baton {

void ContentHash::Add(std::string_view part) {
  const uint64_t size = part.size();
  for (int shift = 0; shift < 64; shift += 8) {
    AddByte(static_cast<unsigned char>(size >> shift));
  }
  for (const char byte : part) AddByte(static_cast<unsigned char>(byte));
}

std::string ContentHash::Hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (int shift = 124; shift >= 0; shift -= 4) {
    hex.push_back(kDigits[static_cast<size_t>(hash_ >> shift & 0xF)]);
  }
  return hex;
}

void ContentHash::AddByte(unsigned char byte) {
  // FNV's prime: 2^88 + 0x13b.
  constexpr Uint128 kPrime = static_cast<Uint128>(1) << 88 | 0x13b;
  hash_ = (hash_ ^ byte) * kPrime;
}

}  // namespace baton
