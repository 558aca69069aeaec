// Which ranks of which workers lately computed a prefix of token ids.
#ifndef BATON_SERVER_ROUTER_PREFIX_TABLE_H_
#define BATON_SERVER_ROUTER_PREFIX_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/prefix_key.h"

namespace baton {

// Tokens of one of the workers' KV blocks: what their caches keep is whole
// blocks.
inline constexpr size_t kTokensPerPrefixBlock = 64;
// Of a prompt as many blocks are looked at. Who shares so much with an earlier
// prompt most likely shares the rest too; and a prompt of a million tokens
// costs the router no more than one of 16 Ki.
inline constexpr size_t kMaxPrefixBlocks = 256;

// One rank of a worker, for as long as its process lives: what was in the
// cache of an earlier process at its address is lost.
struct RankName {
  uint32_t worker = 0;
  uint32_t rank = 0;
  uint64_t incarnation = 0;

  friend bool operator==(const RankName&, const RankName&) = default;
};

// The key of each whole block of the prompt with all before it, in order; of
// the first kMaxPrefixBlocks alone.
std::vector<PrefixKey> PrefixKeysOf(std::span<const uint32_t> prompt_ids,
                                    std::string_view salt);

// Who computed what lately. Thread-compatible.
class PrefixTable final {
 public:
  // REQUIRES: capacity > 0: pairs of a key and a rank.
  explicit PrefixTable(size_t capacity);

  // How many of the keys, from the first one on, the rank has computed.
  // REQUIRES of this and Put: keys of PrefixKeysOf, whole.
  size_t CountKnown(std::span<const PrefixKey> keys,
                    const RankName& rank) const;
  // `rank` computes all of it.
  void Put(std::span<const PrefixKey> keys, const RankName& rank);
  // All its ranks: it is gone, or has restarted. Looks at every entry.
  void Forget(uint32_t worker);

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    PrefixKey key;
    RankName rank;

    friend bool operator==(const Entry&, const Entry&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Entry& entry) {
      const RankName& of = entry.rank;
      return H::combine(std::move(h), entry.key, of.worker, of.rank,
                        of.incarnation);
    }
  };

  const size_t capacity_;
  // The newest first. A key of a prompt is newer than the longer ones of the
  // same prompt and rank: if an entry is there, so are all shorter ones.
  std::list<Entry> by_age_;
  absl::flat_hash_map<Entry, std::list<Entry>::iterator> entries_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_PREFIX_TABLE_H_
