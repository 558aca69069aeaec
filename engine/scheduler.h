// Which sequences run, and what the next step computes.
#ifndef BATON_ENGINE_SCHEDULER_H_
#define BATON_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine_options.h"
#include "engine/kv_cache_manager.h"
#include "engine/scheduler_output.h"
#include "engine/sequence.h"

namespace baton {

// Pure: no clock, no I/O; the same calls give the same plans. Owned by the
// engine. Continuous batching, first come first served:
// - A prompt enters when its whole KV fits, and is computed in chunks.
// - Decoding sequences take blocks as they grow. When none is free, the
//   youngest sequence goes back to the queue, its KV forgotten, so the oldest
//   always goes on. Exports and imports are never preempted: their transfer
//   ends by itself.
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

  // Plans the next step into *plan, which is empty if there is nothing to do.
  // Marks its rows as in flight. May preempt.
  void Schedule(StepId step, SchedulerOutput* plan);

  // Back to the queue, to be recomputed; blocks given up.
  // REQUIRES: CanPreempt.
  void Preempt(SequenceMetadata* sequence);
  static bool CanPreempt(const SequenceMetadata& sequence);

  // Out of the queue or of the running set; late results will be ignored. The
  // phase is the caller's to change. REQUIRES: it is in one of the two.
  void Remove(SequenceMetadata* sequence);

  std::span<SequenceMetadata* const> waiting() const { return waiting_; }
  std::span<SequenceMetadata* const> running() const { return running_; }

  void CheckInvariants() const;

 private:
  bool TryAdmit(SequenceMetadata* sequence);
  void PlanPrefill(SchedulerOutput* plan);
  void PlanDecode(SchedulerOutput* plan);
  bool GrowForNextRow(SequenceMetadata* sequence, SchedulerOutput* plan);
  SequenceMetadata* YoungestBehind(const SequenceMetadata& sequence) const;
  bool PrefillIsDue() const;

  const EngineOptions options_;
  KvCacheManager* const kv_;
  // Both sorted by id, which is by age.
  std::vector<SequenceMetadata*> waiting_;
  std::vector<SequenceMetadata*> running_;
  std::vector<SequenceMetadata*> admitted_;
  uint32_t decode_steps_since_prefill_ = 0;
};

}  // namespace baton

#endif  // BATON_ENGINE_SCHEDULER_H_
