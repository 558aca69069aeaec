// Which sequences run, and what the next step computes.
#ifndef BATON_ENGINE_SCHEDULER_H_
#define BATON_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "engine/engine_options.h"
#include "engine/ids.h"
#include "engine/kv_cache_manager.h"
#include "engine/scheduler_output.h"
#include "engine/sequence.h"
#include "engine/verification_planner.h"

namespace baton {

// What a rank could do in the next step, at most.
struct StepWish {
  uint32_t prefill_tokens = 0;  // Their blocks are reserved.
  // When the oldest of their requests came.
  absl::Time prefill_since = absl::InfiniteFuture();
  uint32_t decode_rows = 0;  // Of sequences that may find their blocks.
  uint32_t num_drafts = 0;   // Of one sequence.
};

// What its group lets a rank do in it.
struct StepBounds {
  StepType type = StepType::kDecode;
  uint32_t max_rows = 0;
  uint32_t max_drafts = 0;  // Of one sequence.
};

// Pure: no clock, no I/O; the same calls give the same plans. Owned by the
// engine. Continuous batching, first come first served:
// - A prompt enters when its whole KV fits, and is computed in chunks; what the
//   prefix cache has of it is taken from there. While an older one computes the
//   block that it needs next, it waits for that.
// - Of several samples of one request one computes the prompt, or imports it;
//   the others wait until its whole blocks are launched, or there, and all is
//   told of the prompt, share these, and compute the rest.
// - Steps in flight are counted in full: a plan reserves blocks for every token
//   that they may draw and every draft that they may make.
// - Decoding sequences take blocks as they grow. When none is free, they go
//   without drafts, then wait for their steps in flight; then the youngest
//   sequence goes back to the queue, its KV forgotten, so the oldest always
//   goes on. Exports and imports are never preempted: their transfer ends by
//   itself.
// - A paused sequence has no rows. Before anybody waits for a place or for
//   blocks, or the youngest is preempted, the youngest paused one is, and stays
//   in the queue, which passes it by, until it is paused no more.
// - A step is of one type. While both kinds of work wait,
//   decode_steps_per_prefill decode steps follow each prefill step.
class Scheduler {
 public:
  // Borrows both.
  Scheduler(const EngineOptions& options, KvCacheManager* kv);

  // Into the queue. REQUIRES: kWaiting, and an id above all before it.
  void Enqueue(SequenceMetadata* sequence);

  // Takes sequences from the queue while they fit: they have their blocks and
  // are kPrefilling or kImportingKv. Valid to the next call.
  std::span<SequenceMetadata* const> Admit();

  // Plans the next step into *plan, which is empty if there is nothing to do,
  // and marks its rows as in flight. May preempt.
  void Schedule(StepId step, SchedulerOutput* plan);

  // The same in a group, which decides together what the next step is: a wish,
  // a plan within bounds, and, unless the plan is forgotten, its rows marked. A
  // prefill plan that is forgotten has changed nothing.
  StepWish Wish() const;
  void PlanWithin(const StepBounds& bounds, StepId step, SchedulerOutput* plan);
  void MarkInFlight(SchedulerOutput* plan);

  // Back to the queue, to be recomputed; blocks given up.
  // REQUIRES: CanPreempt.
  void Preempt(SequenceMetadata* sequence);
  static bool CanPreempt(const SequenceMetadata& sequence);

  // Out of the queue or of the running set; late results will be ignored. The
  // phase is the caller's to change. REQUIRES: it is in one of the two.
  void Remove(SequenceMetadata* sequence);

  // Tokens of the queue whose rows are to be computed here.
  uint64_t waiting_tokens() const { return waiting_tokens_; }
  const PrefixCacheCounts& prefix_counts() const { return prefix_counts_; }
  // To be told of every decode step.
  VerificationPlanner* planner() { return &planner_; }
  std::span<SequenceMetadata* const> waiting() const { return waiting_; }
  std::span<SequenceMetadata* const> running() const { return running_; }

  void CheckInvariants() const;

 private:
  // What a sequence's next decode step is to do.
  struct DecodeWish {
    SequenceMetadata* sequence = nullptr;
    uint32_t verify = 0;      // Drafts that the slot holds.
    uint32_t num_drafts = 0;  // To make.
  };

  // What the queue's head is to find when its prompt is there.
  struct Held {
    uint32_t sequences = 0;
    uint32_t blocks = 0;
  };
  // A running sample of the same request.
  struct PromptHolder {
    const SequenceMetadata* sequence = nullptr;  // Null: there is none.
    bool has_prompt = false;  // The rows to share are launched.
  };

  PromptHolder FindPrompt(const SequenceMetadata& sequence) const;
  uint32_t BlocksToTake(SequenceMetadata* sequence, PromptHolder* holder) const;
  bool AwaitsPrefix(const SequenceMetadata& sequence) const;
  uint32_t RowsToAdmit(const SequenceMetadata& sequence) const;
  void PreemptPausedForQueue();
  bool HasRoom(uint32_t blocks, const Held& held) const;
  void AdmitOne(SequenceMetadata* sequence, const PromptHolder& holder);
  void TakePrefix(SequenceMetadata* sequence);
  StepBounds WidestBounds(StepType type) const;
  void PlanPrefill(const StepBounds& bounds, SchedulerOutput* plan);
  void PlanDecode(const StepBounds& bounds, SchedulerOutput* plan);
  void ChooseDraftsToVerify(uint32_t max_drafts);
  static void PlanHostRows(const DecodeWish& wish, uint32_t num_rows,
                           SchedulerOutput* plan);
  static void PlanDeviceRows(const DecodeWish& wish, SchedulerOutput* plan);
  bool Grow(DecodeWish* wish);
  bool MayGrow(SequenceMetadata* sequence) const;
  uint32_t RowsOf(const DecodeWish& wish) const;
  bool Reserve(const DecodeWish& wish);
  void LeaveDevice(SequenceMetadata* sequence);
  SequenceMetadata* YoungestBehind(const SequenceMetadata& sequence) const;
  SequenceMetadata* YoungestPaused() const;
  // Whose blocks the sequence may have; null: nobody's.
  SequenceMetadata* FindVictim(const SequenceMetadata& sequence) const;
  bool PrefillIsDue() const;
  bool drafts() const { return options_.num_draft_tokens > 0; }

  const EngineOptions options_;
  KvCacheManager* const kv_;
  // Both sorted by id, which is by age.
  std::vector<SequenceMetadata*> waiting_;
  std::vector<SequenceMetadata*> running_;
  std::vector<SequenceMetadata*> admitted_;
  std::vector<uint32_t> free_slots_;
  uint64_t waiting_tokens_ = 0;
  PrefixCacheCounts prefix_counts_;
  uint32_t preemptions_ = 0;  // Since the newest plan.
  uint32_t decode_steps_since_prefill_ = 0;
  uint32_t drafting_steps_ = 0;
  // Of the decode step being planned.
  std::vector<DecodeWish> wishes_;
  std::vector<DraftRates> rates_;
  std::vector<uint32_t> verify_;
  VerificationPlanner planner_;
};

}  // namespace baton

#endif  // BATON_ENGINE_SCHEDULER_H_
