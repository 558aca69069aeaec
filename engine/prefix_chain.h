// What names the blocks of one sequence in the prefix cache.
#ifndef BATON_ENGINE_PREFIX_CHAIN_H_
#define BATON_ENGINE_PREFIX_CHAIN_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/prefix_key.h"
#include "engine/prefix_cache.h"

namespace baton {

// How the rows were computed that a key stands for, if not the usual way.
enum class PrefixForm : uint32_t {
  kAbsorbed = 0,
  kExpanded = 1,  // All of them those of the prompt.
};

// Keys of whole blocks, each computed once. Thread-compatible.
class PrefixChain {
 public:
  explicit PrefixChain(std::string_view salt = {},
                       PrefixForm form = PrefixForm::kAbsorbed)
      : salt_(salt), root_(RootPrefixKey(salt, static_cast<uint32_t>(form))) {}

  // Of the whole blocks of `tokens`, which go on where those before ended.
  void Extend(std::span<const uint32_t> tokens);
  // Extending to so many tokens will not allocate memory.
  void Prepare(uint32_t tokens);
  const std::string& salt() const { return salt_; }
  const PrefixKey& key(uint32_t block) const { return keys_[block]; }
  uint32_t num_keys() const { return static_cast<uint32_t>(keys_.size()); }
  // Of just these tokens, of which the chain has been told.
  PrefixKey KeyOfAll(std::span<const uint32_t> tokens) const;

  // How far the cache has its blocks, as far as was looked.
  PrefixPosition position = {};

 private:
  std::string salt_;
  PrefixKey root_;
  std::vector<PrefixKey> keys_;
};

}  // namespace baton

#endif  // BATON_ENGINE_PREFIX_CHAIN_H_
