// What a model keeps for each token and each sequence.
#ifndef BATON_ENGINE_CACHE_SPEC_H_
#define BATON_ENGINE_CACHE_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace baton {

// One kind of row in the paged cache.
struct CacheGroup {
  std::string name;
  size_t bytes_per_token = 0;  // All layers together.
};

// A block holds kBlockTokens tokens of every group, one group after the other,
// then its tail: what the row behind the block needs of its last position.
struct CacheSpec {
  static constexpr int kBlockTokens = 64;

  // How many blocks hold `tokens` rows.
  static constexpr uint32_t BlocksFor(uint64_t tokens) {
    return static_cast<uint32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
  }

  std::vector<CacheGroup> groups;
  size_t tail_bytes_per_block = 0;
  size_t state_bytes_per_sequence =
      0;  // Window rings, draft state; 0 for DeepSeek-V3.

  // A multiple of 64.
  size_t tail_offset_bytes() const {
    size_t bytes = 0;
    for (const CacheGroup& group : groups)
      bytes += group.bytes_per_token * kBlockTokens;
    return bytes;
  }
  // Rounded up to 64 bytes.
  size_t block_bytes() const {
    return (tail_offset_bytes() + tail_bytes_per_block + 63) / 64 * 64;
  }
};

}  // namespace baton

#endif  // BATON_ENGINE_CACHE_SPEC_H_
