#include "server/router/prefix_table.h"

#include <algorithm>

#include "base/logging.h"

namespace baton {

std::vector<PrefixKey> PrefixKeysOf(std::span<const uint32_t> prompt_ids,
                                    std::string_view salt) {
  const size_t num_blocks =
      std::min(prompt_ids.size() / kTokensPerPrefixBlock, kMaxPrefixBlocks);
  std::vector<PrefixKey> keys;
  keys.reserve(num_blocks);
  PrefixKey key = RootPrefixKey(salt);
  for (size_t i = 0; i < num_blocks; ++i) {
    key = NextPrefixKey(key, prompt_ids.subspan(i * kTokensPerPrefixBlock,
                                                kTokensPerPrefixBlock));
    keys.push_back(key);
  }
  return keys;
}

PrefixTable::PrefixTable(size_t capacity) : capacity_(capacity) {
  CHECK_GT(capacity_, 0u);
}

size_t PrefixTable::CountKnown(std::span<const PrefixKey> keys,
                               const RankName& rank) const {
  const auto is_known = [&](const PrefixKey& key) {
    return entries_.contains({.key = key, .rank = rank});
  };
  return std::partition_point(keys.begin(), keys.end(), is_known) -
         keys.begin();
}

// The last key first: what the fewest other prompts share falls out first.
void PrefixTable::Put(std::span<const PrefixKey> keys, const RankName& rank) {
  for (size_t length = keys.size(); length > 0; --length) {
    const Entry entry = {.key = keys[length - 1], .rank = rank};
    const auto [found, is_new] = entries_.try_emplace(entry);
    if (is_new) {
      by_age_.push_front(entry);
      found->second = by_age_.begin();
    } else {
      by_age_.splice(by_age_.begin(), by_age_, found->second);
    }
  }
  while (entries_.size() > capacity_) {
    entries_.erase(by_age_.back());
    by_age_.pop_back();
  }
}

void PrefixTable::Forget(uint32_t worker) {
  by_age_.remove_if([&](const Entry& entry) {
    if (entry.rank.worker != worker) return false;
    entries_.erase(entry);
    return true;
  });
}

}  // namespace baton
