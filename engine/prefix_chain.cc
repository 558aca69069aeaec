#include "engine/prefix_chain.h"

#include "base/logging.h"
#include "engine/cache_spec.h"

namespace baton {

void PrefixChain::Extend(std::span<const uint32_t> tokens) {
  constexpr size_t kBlock = CacheSpec::kBlockTokens;
  while (keys_.size() < tokens.size() / kBlock) {
    keys_.push_back(
        NextPrefixKey(keys_.empty() ? root_ : keys_.back(),
                      tokens.subspan(keys_.size() * kBlock, kBlock)));
  }
}

void PrefixChain::Prepare(uint32_t tokens) {
  keys_.reserve(tokens / CacheSpec::kBlockTokens);
}

PrefixKey PrefixChain::KeyOfAll(std::span<const uint32_t> tokens) const {
  const size_t whole = tokens.size() / CacheSpec::kBlockTokens;
  CHECK_LE(whole, keys_.size());
  return NextPrefixKey(whole == 0 ? root_ : keys_[whole - 1],
                       tokens.subspan(whole * CacheSpec::kBlockTokens));
}

}  // namespace baton
