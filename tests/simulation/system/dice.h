// Random choices that are the same on every machine.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_DICE_H_
#define BATON_TESTS_SIMULATION_SYSTEM_DICE_H_

#include <cstdint>
#include <random>

#include "absl/time/time.h"

namespace baton {

// Thread-compatible.
class Dice final {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  uint64_t Bits() { return random_(); }
  // Both ends included.
  uint32_t Between(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(random_() % (high - low + 1));
  }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    constexpr int64_t kParts = 1024;
    const auto part = static_cast<int64_t>(random_() % (kParts + 1));
    return low + (high - low) * part / kParts;
  }
  bool OneIn(uint32_t n) { return random_() % n == 0; }

 private:
  std::mt19937_64 random_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_DICE_H_
