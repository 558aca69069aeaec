// What paused sequences give up for the others.
#include <algorithm>

#include "engine/kv_block_range.h"
#include "engine/scheduler.h"

namespace baton {

// Room for the queue's first, or until no paused one is left.
void Scheduler::PreemptPausedForQueue() {
  const auto first = std::find_if(
      waiting_.begin(), waiting_.end(),
      [](const SequenceMetadata* sequence) { return !sequence->paused; });
  if (first == waiting_.end()) return;
  SequenceMetadata* const sequence = *first;
  while (SequenceMetadata* paused = YoungestPaused()) {
    PromptHolder holder = FindPrompt(*sequence);
    if (HasRoom(BlocksToTake(sequence, &holder), {})) return;
    // Blocks that a step in flight still holds will be free soon.
    if (running_.size() < options_.max_running_requests &&
        kv_->num_in(KvRangeState::kQuarantined) > 0) {
      return;
    }
    Preempt(paused);
  }
}

SequenceMetadata* Scheduler::YoungestPaused() const {
  const auto found = std::find_if(
      running_.rbegin(), running_.rend(), [](const SequenceMetadata* sequence) {
        return sequence->paused && CanPreempt(*sequence);
      });
  return found == running_.rend() ? nullptr : *found;
}

SequenceMetadata* Scheduler::FindVictim(
    const SequenceMetadata& sequence) const {
  SequenceMetadata* const paused = YoungestPaused();
  return paused != nullptr ? paused : YoungestBehind(sequence);
}

}  // namespace baton
