// The scheduler's queue and running set: who enters and who leaves.
#include <algorithm>

#include "base/logging.h"
#include "engine/cache_spec.h"
#include "engine/prefix_cache.h"
#include "engine/scheduler.h"

namespace baton {
namespace {

// Both sets are sorted by id.
template <typename Set>
auto PlaceOf(Set& set, SequenceId id) {
  return std::lower_bound(
      set.begin(), set.end(), id,
      [](const SequenceMetadata* a, SequenceId b) { return a->id < b; });
}

void Insert(std::vector<SequenceMetadata*>& set, SequenceMetadata* sequence) {
  set.insert(PlaceOf(set, sequence->id), sequence);
}

void Erase(std::vector<SequenceMetadata*>& set, SequenceMetadata* sequence) {
  const auto place = PlaceOf(set, sequence->id);
  CHECK(place != set.end() && *place == sequence);
  set.erase(place);
}

// Tokens to compute here when it is admitted, if the first sample's prompt is
// there by then.
uint32_t TokensToCompute(const SequenceMetadata& sequence) {
  if (sequence.imports()) return 0;
  const bool shares = sequence.id != sequence.first_sample;
  return sequence.num_tokens() - (shares ? sequence.shareable_rows() : 0);
}

uint32_t ShareableBlocks(const SequenceMetadata& sequence) {
  return CacheSpec::BlocksFor(sequence.shareable_rows());
}

}  // namespace

void Scheduler::Enqueue(SequenceMetadata* sequence) {
  CHECK(sequence->phase() == SequencePhase::kWaiting);
  CHECK(waiting_.empty() || waiting_.back()->id < sequence->id);
  waiting_.push_back(sequence);
  waiting_tokens_ += TokensToCompute(*sequence);
}

std::span<SequenceMetadata* const> Scheduler::Admit() {
  admitted_.clear();
  PreemptPausedForQueue();
  Held held;
  for (SequenceMetadata* sequence : waiting_) {
    if (sequence->paused) continue;
    PromptHolder holder = FindPrompt(*sequence);
    const uint32_t blocks = BlocksToTake(sequence, &holder);
    if (!HasRoom(blocks, held)) break;
    const bool awaits = holder.sequence != nullptr ? !holder.has_prompt
                                                   : AwaitsPrefix(*sequence);
    if (awaits) {
      // Those behind it take only what it leaves.
      ++held.sequences;
      held.blocks += blocks;
      continue;
    }
    AdmitOne(sequence, holder);
    admitted_.push_back(sequence);
  }
  if (!admitted_.empty()) {
    std::erase_if(waiting_, [](const SequenceMetadata* sequence) {
      return sequence->phase() != SequencePhase::kWaiting;
    });
  }
  return admitted_;
}

Scheduler::PromptHolder Scheduler::FindPrompt(
    const SequenceMetadata& sequence) const {
  // Blocks that others have are not to be written by a transfer.
  if (!sequence.first_sample.has_value() || sequence.imports()) return {};
  const uint32_t rows = sequence.shareable_rows();
  const SequenceMetadata* computing = nullptr;
  for (auto it = PlaceOf(running_, *sequence.first_sample);
       it != running_.end() && (*it)->first_sample == sequence.first_sample;
       ++it) {
    // Steps run in their order, so launched is enough. But nothing is told of
    // the prompt behind any sample's tokens.
    if ((*it)->launched_rows() >= rows && !(*it)->tells_prompt()) {
      return {.sequence = rows > 0 ? *it : nullptr, .has_prompt = true};
    }
    computing = *it;
  }
  return {.sequence = computing, .has_prompt = false};
}

// Of those that count as free. Looks into the cache, which may know more than
// the holder: of tokens generated before a preemption.
uint32_t Scheduler::BlocksToTake(SequenceMetadata* sequence,
                                 PromptHolder* holder) const {
  kv_->FindPrefix(sequence->tokens, sequence->max_prefix_blocks(),
                  &sequence->prefix);
  const PrefixPosition& prefix = sequence->prefix.position;
  if (holder->has_prompt && prefix.num_blocks >= ShareableBlocks(*sequence)) {
    holder->sequence = nullptr;
  }
  const uint32_t blocks = CacheSpec::BlocksFor(RowsToAdmit(*sequence));
  return holder->sequence != nullptr
             ? blocks - ShareableBlocks(*sequence)
             : blocks - prefix.num_blocks + kv_->NumIdle(prefix);
}

// An older one computes the block that it would compute first. Waiting costs it
// nothing: steps have the same number of rows whoever's they are.
bool Scheduler::AwaitsPrefix(const SequenceMetadata& sequence) const {
  const uint32_t block = sequence.prefix.position.num_blocks;
  if (sequence.imports() || block >= sequence.max_prefix_blocks()) return false;
  const uint32_t end = (block + 1) * CacheSpec::kBlockTokens;
  return std::any_of(
      running_.begin(), PlaceOf(running_, sequence.id),
      [&](const SequenceMetadata* older) {
        return older->phase() == SequencePhase::kPrefilling && !older->paused &&
               older->computed_rows < end && older->max_cached_rows >= end &&
               older->prefix.num_keys() > block &&
               older->prefix.key(block) == sequence.prefix.key(block);
      });
}

// The drafter has a row of the first token drawn, too.
uint32_t Scheduler::RowsToAdmit(const SequenceMetadata& sequence) const {
  const uint32_t drafter_rows = drafts() && !sequence.imports() ? 1 : 0;
  return std::min(sequence.num_tokens() + drafter_rows,
                  std::max(sequence.end_position(), sequence.num_tokens()));
}

bool Scheduler::HasRoom(uint32_t blocks, const Held& held) const {
  if (running_.size() + held.sequences >= options_.max_running_requests) {
    return false;
  }
  // A free block for each one whose KV grows, else the newcomer would soon be
  // preempted for it. Alone it needs no room to spare.
  const auto growing = std::count_if(
      running_.begin(), running_.end(),
      [](const SequenceMetadata* running) { return !running->exports(); });
  return blocks + held.blocks + held.sequences + growing <= kv_->num_free();
}

void Scheduler::AdmitOne(SequenceMetadata* sequence,
                         const PromptHolder& holder) {
  kv_->Prepare(&sequence->kv, sequence->max_total_tokens);
  sequence->tokens.reserve(sequence->max_total_tokens);
  sequence->prefix.Prepare(
      std::min(sequence->max_total_tokens, sequence->max_cached_rows));
  waiting_tokens_ -= TokensToCompute(*sequence);
  if (holder.sequence != nullptr) {
    CHECK(!sequence->tells_prompt());
    kv_->Share(holder.sequence->kv, ShareableBlocks(*sequence), &sequence->kv);
    sequence->computed_rows = sequence->shareable_rows();
  } else {
    TakePrefix(sequence);
  }
  CHECK(kv_->Reserve(&sequence->kv, RowsToAdmit(*sequence)));
  sequence->SetPhase(sequence->imports() ? SequencePhase::kImportingKv
                                         : SequencePhase::kPrefilling);
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  Insert(running_, sequence);
}

void Scheduler::TakePrefix(SequenceMetadata* sequence) {
  const PrefixPosition& prefix = sequence->prefix.position;
  const uint32_t rows = prefix.num_blocks * CacheSpec::kBlockTokens;
  kv_->TakePrefix(prefix, &sequence->kv);
  if (!sequence->imports()) sequence->computed_rows = rows;
  if (sequence->max_cached_rows == 0) return;
  prefix_counts_.queried_tokens += sequence->num_tokens();
  prefix_counts_.hit_tokens += rows;
}

bool Scheduler::CanPreempt(const SequenceMetadata& sequence) {
  return !sequence.exports() &&
         (sequence.phase() == SequencePhase::kPrefilling ||
          sequence.phase() == SequencePhase::kDecoding);
}

void Scheduler::Preempt(SequenceMetadata* sequence) {
  CHECK(CanPreempt(*sequence));
  ++preemptions_;
  Erase(running_, sequence);
  kv_->Release(&sequence->kv);
  LeaveDevice(sequence);
  sequence->computed_rows = 0;
  sequence->SetPhase(SequencePhase::kWaiting);
  Insert(waiting_, sequence);
  waiting_tokens_ += TokensToCompute(*sequence);
}

void Scheduler::Remove(SequenceMetadata* sequence) {
  if (sequence->phase() == SequencePhase::kWaiting) {
    Erase(waiting_, sequence);
    waiting_tokens_ -= TokensToCompute(*sequence);
  } else {
    Erase(running_, sequence);
    LeaveDevice(sequence);
  }
}

// Its slot may be given at once: steps launched from now on come later.
void Scheduler::LeaveDevice(SequenceMetadata* sequence) {
  free_slots_.push_back(sequence->slot);
  sequence->inflight_rows = 0;
  sequence->total_inflight_tokens = 0;
  sequence->inflight_draws = 0;
  sequence->on_device = false;
  sequence->num_drafts = 0;
  ++sequence->generation;
}

}  // namespace baton
