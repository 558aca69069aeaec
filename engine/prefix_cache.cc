#include "engine/prefix_cache.h"

#include <algorithm>

#include "base/logging.h"
#include "engine/cache_spec.h"

namespace baton {

PrefixCache::PrefixCache(uint32_t num_blocks)
    : entries_(num_blocks),
      tokens_(size_t{num_blocks} * CacheSpec::kBlockTokens) {
  // A seventh more, so that it never grows, however many are erased between.
  by_key_.reserve(num_blocks + num_blocks / 7 + 1);
}

bool PrefixCache::Has(const PrefixPosition& position) const {
  return position.num_blocks == 0 ||
         entries_[position.block.value()].id == position.entry;
}

bool PrefixCache::Advance(const PrefixBlock& next,
                          PrefixPosition* position) const {
  DCHECK(Has(*position));
  const auto found = by_key_.find(next.key);
  if (found == by_key_.end()) return false;
  const Entry& entry = entries_[found->second];
  if (!Holds(entry, *position, next)) return false;
  *position = {.num_blocks = position->num_blocks + 1,
               .block = BlockId(found->second),
               .entry = entry.id};
  return true;
}

// The blocks before are right if the one before is the position's.
bool PrefixCache::Holds(const Entry& entry, const PrefixPosition& before,
                        const PrefixBlock& block) const {
  const bool is_first = before.num_blocks == 0;
  if (entry.parent != (is_first ? kNone : before.block.value())) return false;
  if (is_first && entry.salt != block.salt) return false;
  const auto index = static_cast<uint32_t>(&entry - entries_.data());
  return std::equal(block.tokens.begin(), block.tokens.end(), TokensOf(index));
}

bool PrefixCache::Insert(const PrefixBlock& next, BlockId block,
                         PrefixPosition* position) {
  CHECK(Has(*position));
  CHECK_EQ(next.tokens.size(), size_t{CacheSpec::kBlockTokens});
  CHECK(!Contains(block)) << "block " << block << " is cached already";
  const uint32_t index = block.value();
  if (!by_key_.try_emplace(next.key, index).second) return false;
  Entry& entry = entries_[index];
  entry = {.id = ++newest_id_,
           .key = next.key,
           .salt = {},
           .depth = position->num_blocks + 1,
           .parent = kNone,
           .first_child = kNone,
           .next_sibling = kNone,
           .previous_sibling = kNone,
           .idle = false,
           .older = kNone,
           .newer = kNone};
  if (position->num_blocks == 0) {
    entry.salt = next.salt;
  } else {
    entry.parent = position->block.value();
    Entry& parent = entries_[entry.parent];
    entry.next_sibling = parent.first_child;
    if (entry.next_sibling != kNone) {
      entries_[entry.next_sibling].previous_sibling = index;
    }
    parent.first_child = index;
  }
  std::copy(next.tokens.begin(), next.tokens.end(), TokensOf(index));
  *position = {.num_blocks = entry.depth, .block = block, .entry = entry.id};
  return true;
}

PrefixPosition PrefixCache::Before(const PrefixPosition& position) const {
  CHECK(position.num_blocks > 0 && Has(position));
  if (position.num_blocks == 1) return {};
  const uint32_t parent = entries_[position.block.value()].parent;
  return {.num_blocks = position.num_blocks - 1,
          .block = BlockId(parent),
          .entry = entries_[parent].id};
}

void PrefixCache::SetIdle(BlockId block) {
  const uint32_t index = block.value();
  Entry& entry = entries_[index];
  CHECK(entry.id != 0 && !entry.idle);
  entry.idle = true;
  entry.older = newest_idle_;
  entry.newer = kNone;
  (newest_idle_ == kNone ? oldest_idle_ : entries_[newest_idle_].newer) = index;
  newest_idle_ = index;
  ++num_idle_;
}

void PrefixCache::SetBusy(BlockId block) {
  CHECK(Contains(block) && IsIdle(block));
  UnlinkFromIdle(block.value());
}

void PrefixCache::Evict(std::vector<BlockId>* freed) {
  CHECK_GT(num_idle_, 0u);
  uint32_t victim = oldest_idle_;
  for (uint32_t child = victim; child != kNone; child = FirstIdleChild(child)) {
    victim = child;
  }
  UnlinkFromParent(victim);
  Forget(victim, freed);
}

uint32_t PrefixCache::FirstIdleChild(uint32_t index) const {
  uint32_t child = entries_[index].first_child;
  while (child != kNone && !entries_[child].idle) {
    child = entries_[child].next_sibling;
  }
  return child;
}

// It, and what is behind it: child after child, without recursion. REQUIRES:
// its parent does not know it any more.
void PrefixCache::Forget(uint32_t index, std::vector<BlockId>* freed) {
  const uint32_t top = index;
  while (true) {
    Entry& entry = entries_[index];
    if (entry.first_child != kNone) {
      index = entry.first_child;
      entry.first_child = entries_[index].next_sibling;
      continue;
    }
    if (entry.idle) {
      UnlinkFromIdle(index);
      freed->push_back(BlockId(index));
    }
    by_key_.erase(entry.key);
    entry.id = 0;
    ++num_evicted_;
    if (index == top) return;
    index = entry.parent;
  }
}

void PrefixCache::UnlinkFromParent(uint32_t index) {
  const Entry& entry = entries_[index];
  if (entry.parent == kNone) return;
  (entry.previous_sibling == kNone
       ? entries_[entry.parent].first_child
       : entries_[entry.previous_sibling].next_sibling) = entry.next_sibling;
  if (entry.next_sibling == kNone) return;
  entries_[entry.next_sibling].previous_sibling = entry.previous_sibling;
}

void PrefixCache::UnlinkFromIdle(uint32_t index) {
  Entry& entry = entries_[index];
  (entry.older == kNone ? oldest_idle_ : entries_[entry.older].newer) =
      entry.newer;
  (entry.newer == kNone ? newest_idle_ : entries_[entry.newer].older) =
      entry.older;
  entry.idle = false;
  --num_idle_;
}

uint32_t* PrefixCache::TokensOf(uint32_t index) {
  return &tokens_[size_t{index} * CacheSpec::kBlockTokens];
}

const uint32_t* PrefixCache::TokensOf(uint32_t index) const {
  return &tokens_[size_t{index} * CacheSpec::kBlockTokens];
}

// No key is looked up: with many blocks that would take long.
void PrefixCache::CheckInvariants() const {
  uint32_t cached = 0, children = 0, first = 0, idle = 0;
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.id == 0) {
      CHECK(!entry.idle) << "block " << i;
      continue;
    }
    ++cached;
    first += entry.parent == kNone;
    const uint32_t depth =
        entry.parent == kNone ? 0 : entries_[entry.parent].depth;
    CHECK_EQ(entry.depth, depth + 1) << "block " << i;
    for (uint32_t child = entry.first_child; child != kNone;
         child = entries_[child].next_sibling) {
      ++children;
      CHECK(entries_[child].id != 0 && entries_[child].parent == i)
          << "block " << child << " is no child of block " << i;
    }
  }
  for (uint32_t i = oldest_idle_; i != kNone; i = entries_[i].newer) {
    CHECK(entries_[i].id != 0 && entries_[i].idle) << "block " << i;
    ++idle;
  }
  CHECK_EQ(cached, by_key_.size());
  CHECK_EQ(cached, first + children);
  CHECK_EQ(idle, num_idle_);
}

}  // namespace baton
