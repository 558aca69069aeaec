#include "comm/kv_checksum.h"

#include <cstring>

#include "base/logging.h"

namespace baton {
namespace {

constexpr int kLanes = 8;
constexpr size_t kStripeBytes = kLanes * sizeof(uint64_t);
constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;

// Each bit of the value decides about half of the result's; one to one. (The
// finalizer of SplitMix64.)
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t KvBlockChecksum(const std::byte* block, size_t bytes,
                         KvBlockIdentity identity) {
  CHECK_EQ(bytes % kStripeBytes, 0u);
  uint64_t lanes[kLanes];
  uint64_t seed = Mix(identity.generation + kMultiplier) ^ identity.index;
  for (uint64_t& lane : lanes) lane = seed = Mix(seed + kMultiplier);
  for (size_t at = 0; at < bytes; at += kStripeBytes) {
    for (int i = 0; i < kLanes; ++i) {
      uint64_t word;
      std::memcpy(&word, block + at + i * sizeof word, sizeof word);
      const uint64_t product = (lanes[i] ^ word) * kMultiplier;
      lanes[i] = product ^ (product >> 29);
    }
  }
  uint64_t sum = bytes;
  for (const uint64_t lane : lanes) sum = Mix(sum ^ lane);
  return sum;
}

}  // namespace baton
