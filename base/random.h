// Bits that no other process draws.
#ifndef BATON_BASE_RANDOM_H_
#define BATON_BASE_RANDOM_H_

#include <cstdint>

namespace baton {

// From the system's source of randomness; thread-safe, and slow: for nonces and
// seeds.
uint64_t RandomBits();

}  // namespace baton

#endif  // BATON_BASE_RANDOM_H_
