// One rank's engine: from requests to tokens, step by step.
#ifndef BATON_ENGINE_LLM_ENGINE_H_
#define BATON_ENGINE_LLM_ENGINE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/kv_transfer.h"
#include "engine/abort_meter.h"
#include "engine/deferred_release.h"
#include "engine/engine_environment.h"
#include "engine/engine_options.h"
#include "engine/generation_request.h"
#include "engine/inbox.h"
#include "engine/kv_cache_manager.h"
#include "engine/model_runner.h"
#include "engine/prefix_chain.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step_history.h"
#include "engine/step_results.h"
#include "engine/token_sink.h"
#include "engine/worker.h"
#include "kernels/sample.h"

namespace baton {

// Submit, Abort, SetPaused, ShedWaiting, OnTransferEvent, limits, load, steps,
// Wake: thread-safe. Everything else: the engine thread, one at a time, which
// owns all state of the rank; the inbox is the only way in, TokenSink out.
class LLMEngine {
 public:
  LLMEngine(const EngineOptions& options, const EngineEnvironment& environment);
  // REQUIRES: idle().
  ~LLMEngine();

  // Validates, takes a place in the queue, and hands the request to the engine
  // thread. On an error the sink is never called:
  //   INVALID_ARGUMENT     a field
  //   FAILED_PRECONDITION  a handle of another fingerprint; no transfer here
  //   RESOURCE_EXHAUSTED   max_waiting_requests
  // A live request with the same id and sample_index: the sink is told
  // OnFinished(ALREADY_EXISTS).
  absl::Status Submit(GenerationRequest request, TokenSink* sink) {
    return Submit(std::move(request), std::span(&sink, 1));
  }
  // sinks[i] hears sample_index + i alone: each sample is a request of its own
  // from here on, but their prompt is computed once, or imported by the first.
  // The first alone tells of the prompt, before anybody's tokens. All of them
  // are taken, or none. REQUIRES: as many sinks as samples.
  absl::Status Submit(GenerationRequest request,
                      std::span<TokenSink* const> sinks);
  // Ends one sample, or all, with CANCELLED. Unknown ids: nothing.
  void Abort(const RequestId& id, std::optional<uint32_t> sample_index);
  // Paused samples launch nothing, then go on as if nothing had been.
  void SetPaused(const PauseCommand& samples);
  // Ends the younger half of those that were never admitted: so many at most.
  uint32_t ShedWaiting(const absl::Status& status);
  void OnTransferEvent(KvTransferEvent event);

  const RequestLimits& limits() const { return limits_; }
  EngineLoad load() const;

  // One turn of the loop, without blocking: Collect, then plan and launch the
  // next step. True if anything happened.
  bool Advance();

  // The same for a rank of a group, whose steps the group decides together.
  // Drains the inbox, commits what is done, admits. True if anything happened.
  bool Collect();
  StepWish Wish() const { return scheduler_.Wish(); }
  // When the device ended all it was given; InfiniteFuture: it has not.
  absl::Time IdleSince() const;
  bool HasRoomForStep() { return worker_.NextStep() != nullptr; }
  // Plans the next step; false if this rank has nothing to do in it. Launch, or
  // another PlanStep, follows. REQUIRES: HasRoomForStep().
  bool PlanStep(const StepBounds& bounds);
  void LaunchStep(const GroupStep& group);
  // When the next turn is due if nothing calls for it before.
  absl::Duration TimeToNextTurn(absl::Duration longest) const;
  // Ends every request that needs steps yet with this status: not those whose
  // KV is complete and waits for its reader. False: there was none.
  bool EndUnfinished(const absl::Status& status);
  bool has_steps() const { return !worker_.idle(); }
  // No request, nothing in the stream, no block out.
  bool idle() const;
  // Blocks until there may be something to do, or `timeout`. While steps follow
  // one another the device wakes nobody: this returns when the oldest should
  // have ended, by the time of the one before.
  void WaitForWork(absl::Duration timeout);
  void Wake();

  // As under pressure, by hand (tests); false: not running, or in a transfer.
  bool Preempt(const RequestId& id, uint32_t sample_index);

  const StepHistory& steps() const { return history_; }
  // Dies if the accounting of blocks and sequences does not add up.
  void CheckInvariants() const;

 private:
  using SequenceKey = std::pair<RequestId, uint32_t>;

  template <typename Command>
  void Push(Command command);

  // The turn's parts, in order; true if anything happened.
  bool DrainInbox();
  bool CommitDoneSteps();
  bool EndLateSequences(absl::Time now);
  bool AdmitSequences();
  bool LaunchNextStep(absl::Time turn_start);
  void Launch(WorkerStepState* step, absl::Time turn_start);
  void UpdateLoad();
  absl::Duration TimeToStepEnd() const;  // REQUIRES: steps are in flight.
  // Null, and its sink told, if the same sample is live.
  SequenceMetadata* AddSequence(std::unique_ptr<SequenceMetadata> added);
  absl::Status CheckTransfer(const GenerationRequest& request,
                             const PrefixChain& prefix) const;

  void OnCommand(SubmitCommand& command);
  void OnCommand(AbortCommand& command);
  void OnCommand(PauseCommand& command);
  void OnCommand(ShedCommand& command);
  void OnCommand(KvTransferEvent& event);
  void OnExportEnded(const KvExportEnded& event);
  void OnImportEnded(const KvImportEnded& event);

  void StartExport(SequenceMetadata* sequence);
  void StartImport(SequenceMetadata* sequence);
  void CommitStep(WorkerStepState* step);
  DrawnRows DrawnOf(const WorkerStepState& step, size_t row) const;
  CommittedRows CommitRows(const ScheduledRows& rows, const DrawnRows& drawn);
  void CountCommitted(const ScheduledRows& rows, const SampleOutput* drawn);
  void CacheCommittedRows(SequenceMetadata* sequence);
  void ReportProgress(SequenceMetadata* sequence) const;
  void LeavePrefill(SequenceMetadata* sequence);
  // Appends up to the one that ends it; returns how many.
  uint32_t AppendTokens(SequenceMetadata* sequence,
                        std::span<const SampledToken> drawn,
                        std::span<const SampledToken> top);
  void ReportStep(const WorkerStepState& step, const CommittedRows& committed,
                  absl::Duration commit_time);

  // Ends it as soon as no transfer touches its blocks.
  void End(SequenceMetadata* sequence, absl::Status status);
  // REQUIRES: it is in no queue, and no transfer touches its blocks.
  void Finish(SequenceMetadata* sequence, const absl::Status& status);
  SequenceMetadata& Live(SequenceId id) const;

  const EngineOptions options_;
  const EngineEnvironment environment_;
  const ModelRunnerInfo model_;
  const RequestLimits limits_;

  Inbox inbox_;
  AbortMeter abort_meter_;
  // Submitted, and never yet admitted.
  std::atomic<uint32_t> num_waiting_{0};
  mutable absl::Mutex load_mutex_;
  EngineLoad load_ ABSL_GUARDED_BY(load_mutex_);

  // All below: the engine thread.
  std::vector<EngineCommand> commands_;
  // Live: submitted and drained, and the sink not yet told the end.
  std::map<SequenceKey, std::unique_ptr<SequenceMetadata>> sequences_;
  std::map<SequenceId, SequenceMetadata*> by_id_;
  std::set<std::pair<absl::Time, SequenceId>> deadlines_;
  SequenceId newest_sequence_;
  KvCacheManager kv_;
  Scheduler scheduler_;
  Worker worker_;
  DeferredRelease<std::unique_ptr<SequenceMetadata>> deferred_sequences_;
  StepId newest_launched_;
  StepId newest_done_;
  absl::Time plan_start_;  // Of PlanStep.
  StepHistory history_;
  uint32_t num_exporting_ = 0;
  uint32_t importing_blocks_ = 0;
  // The end on the device of the newest committed step, while work followed it
  // without a gap of ours.
  std::optional<absl::Time> device_busy_until_;
  // Of the newest committed step of each type.
  std::array<absl::Duration, 2> device_time_;
};

}  // namespace baton

#endif  // BATON_ENGINE_LLM_ENGINE_H_
