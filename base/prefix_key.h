// What names a prefix of token ids, block by block.
//
//   root of (salt, form) -> key of block 0 -> key of block 1 -> ...
//
// Each key stands for all tokens from the first one to its block's end. The
// same on every machine and in every version of one release: routers and
// workers compute the same keys.
#ifndef BATON_BASE_PREFIX_KEY_H_
#define BATON_BASE_PREFIX_KEY_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace baton {

// 128 bits, well mixed, but no proof of anything: who may not be deceived
// compares the tokens too.
struct PrefixKey {
  uint64_t high = 0;
  uint64_t low = 0;

  friend bool operator==(const PrefixKey&, const PrefixKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const PrefixKey& key) {
    return H::combine(std::move(h), key.high, key.low);
  }
};

// The key of no tokens. Prefixes of different salts never meet, nor do those
// whose rows were computed in different forms.
PrefixKey RootPrefixKey(std::string_view salt, uint32_t form = 0);

// The key of `parent`'s tokens and then these.
PrefixKey NextPrefixKey(const PrefixKey& parent,
                        std::span<const uint32_t> tokens);

}  // namespace baton

#endif  // BATON_BASE_PREFIX_KEY_H_
