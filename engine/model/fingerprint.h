// What must be equal before two processes exchange KV or resume each other's
// requests.
#ifndef BATON_ENGINE_MODEL_FINGERPRINT_H_
#define BATON_ENGINE_MODEL_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/model/numerics.h"
#include "engine/model/safetensors.h"
#include "kernels/latent_attention.h"

namespace baton {

// Changes with any definition of spec "exact numerics".
inline constexpr int kNumericsVersion = 1;

// FNV-1a of 128 bits, taken over little-endian words of 64 bits instead of
// bytes; each piece is preceded by its length and its last word filled up with
// zeros. Tells models apart; it resists no attacker.
class Hash128 {
 public:
  void Add(std::span<const std::byte> bytes);
  void Add(std::string_view text) { Add(std::as_bytes(std::span(text))); }
  void AddNumber(uint64_t number);
  std::string Hex() const;  // 32 digits.

 private:
  unsigned __int128 state_ =
      (static_cast<unsigned __int128>(0x6c62272e07bb0142) << 64) |
      0x62b821756295c58d;
};

// What decides how a block of KV looks.
struct CacheKind {
  CacheDtype dtype = CacheDtype::kBf16;
  bool has_drafter = false;
  Numerics numerics = Numerics::kExact;
};

// Of kNumericsVersion, the numerics mode, back end "cpu", the kind of cache,
// config.json, and each tensor's name, dtype, shape and first 4 KiB. How
// weights are kept in memory is no part of it: it changes no result.
std::string ModelFingerprint(std::string_view config_json,
                             const ModelTensors& tensors, CacheKind cache);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_FINGERPRINT_H_
