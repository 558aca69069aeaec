#include "base/prefix_key.h"

#include <cstring>

namespace baton {
namespace {

// Odd, and with no pattern: the fractions of the square roots of 2, 3, 5, 7.
constexpr uint64_t kOdd[] = {0x6a09e667f3bcc909, 0xbb67ae8584caa73b,
                             0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1};

// Both halves of the 128-bit product, folded: each bit of it depends on all
// bits of the smaller factor.
uint64_t Fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Two lanes over the same words. Each keeps its own state beside the product,
// so that a factor of zero does not forget what came before.
class Mixer {
 public:
  explicit Mixer(const PrefixKey& key) : state_(key) {}

  void Add(uint64_t word) {
    state_.high = Fold(state_.high ^ word ^ kOdd[0], kOdd[1]) + state_.low;
    state_.low = Fold(state_.low ^ word ^ kOdd[2], state_.high ^ kOdd[3]) +
                 (state_.high << 32 | state_.high >> 32);
  }

  PrefixKey Finish(uint64_t length) {
    Add(length);
    Add(~length);
    return state_;
  }

 private:
  PrefixKey state_;
};

}  // namespace

PrefixKey RootPrefixKey(std::string_view salt, uint32_t form) {
  Mixer mixer({.high = kOdd[2], .low = kOdd[0]});
  mixer.Add(form);
  for (size_t i = 0; i < salt.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;  // Little-endian, as are all machines that this runs on.
    const std::string_view part = salt.substr(i, sizeof(word));
    std::memcpy(&word, part.data(), part.size());
    mixer.Add(word);
  }
  return mixer.Finish(salt.size());
}

PrefixKey NextPrefixKey(const PrefixKey& parent,
                        std::span<const uint32_t> tokens) {
  Mixer mixer(parent);
  for (const uint32_t token : tokens) mixer.Add(token);
  return mixer.Finish(tokens.size());
}

}  // namespace baton
