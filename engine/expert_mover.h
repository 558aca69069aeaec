// One process's part in moving a group's experts: a few layers at a time, in
// the background, while steps go on with the old tables.
//
//   kIdle ──a batch is here──► kLoading ──all there──► kLoaded
//     ▲                         │   │                    │ the group's vote
//     │                 failed  │   │ abandoned          ▼ has reached it
//     │ ◄─abandoned─ kFailed ◄──┘   └──► kCancelled    kRetiring
//     │ ◄─what was loaded is dropped────────┘            │ steps of the old
//     │ ◄────────────────────────────────────────────────┘ tables are done
//
// A batch is loaded once the one before it is over, so a process holds at most
// one batch's experts besides those that its slots have. All batches end at
// versions of the placement; versions count the layers that were set, and those
// of an abandoned plan are never used again, so a ballot of one version means
// one placement.
#ifndef BATON_ENGINE_EXPERT_MOVER_H_
#define BATON_ENGINE_EXPERT_MOVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/expert_dispatch.h"
#include "engine/expert_placement.h"
#include "engine/rebalance_message.h"

namespace baton {

// Logical, of a layer.
struct LayerExpert {
  uint32_t layer = 0;
  uint32_t expert = 0;
  friend auto operator<=>(const LayerExpert&, const LayerExpert&) = default;
};

// A placement as steps take it. Never changes, nor where it is.
class ExpertTables final {
 public:
  ExpertTables(ExpertPlacement placement, uint64_t version);
  ExpertTables(const ExpertTables&) = delete;
  ExpertTables& operator=(const ExpertTables&) = delete;

  const ExpertPlacement& placement() const { return placement_; }
  // What ballots call it.
  uint64_t version() const { return version_; }
  std::span<const ExpertSlots> slots() const { return slots_; }

 private:
  const ExpertPlacement placement_;
  const uint64_t version_;
  std::vector<ExpertSlots> slots_;  // Of each layer.
};

enum class ExpertMovePhase : uint8_t {
  kIdle,
  kLoading,
  kLoaded,     // Waits for the vote.
  kRetiring,   // Switched; steps in flight have the old tables.
  kFailed,     // Waits for the plan to be abandoned.
  kCancelled,  // Abandoned while it loads.
};
inline constexpr int kNumExpertMovePhases = 6;

constexpr bool IsLegalTransition(ExpertMovePhase from, ExpertMovePhase to) {
  using enum ExpertMovePhase;
  switch (from) {
    case kIdle:  // A batch is here.
      return to == kLoading;
    case kLoading:  // All there; one failed; Abandon.
      return to == kLoaded || to == kFailed || to == kCancelled;
    case kLoaded:  // OnStep; Abandon.
      return to == kRetiring || to == kIdle;
    case kRetiring:   // OnStepsDone.
    case kFailed:     // Abandon.
    case kCancelled:  // What was asked for is there, or failed.
      return to == kIdle;
  }
  return false;
}

struct ExpertMoverOptions {
  ExpertLayout layout;
  // The local ones: [first_rank, first_rank + num_local_ranks).
  uint32_t first_rank = 0;
  uint32_t num_local_ranks = 1;
  // Asks for experts of which no local slot has one yet, or for none, which
  // waits for the drops before it. OnLoaded answers, not before this returns:
  // all of them are there, or none is. One call at a time is open.
  std::function<void(std::vector<LayerExpert>)> load = {};
  // Of experts that are there and that no local slot has any more, after the
  // last step that used them. May go on while the next are loaded, but starts
  // before.
  std::function<void(std::vector<LayerExpert>)> drop = {};
};

struct ExpertMoverCounters {
  uint64_t loaded_experts = 0;
  uint64_t dropped_experts = 0;
  uint64_t moved_layers = 0;      // Switched.
  uint64_t abandoned_layers = 0;  // Of plans, never switched.
  uint64_t failed_batches = 0;
};

// Pure. Owned by the engines' thread.
class ExpertMover final {
 public:
  explicit ExpertMover(const ExpertMoverOptions& options);

  // False, and nothing changed: not the layer that comes next, or what may not
  // be a layer's. REQUIRES: kMove.
  bool AddMove(const RebalanceMessage& move);
  // Not before the plan's moves are here. False, and nothing changed: another
  // plan, or a placement that isn't one of its own still ahead.
  // REQUIRES: kAbandon.
  bool Abandon(const RebalanceMessage& abandon);
  bool MayAbandon(const RebalanceMessage& abandon) const;
  // False: the batch has failed, of which the leader is to be told.
  bool OnLoaded(bool ok);

  // The tables of the step that is launched now, the `step`-th of the epoch, on
  // which the group has agreed at this version. They live until it is done.
  const ExpertTables* OnStep(uint64_t step, uint64_t version);
  // So many are done on each local rank.
  void OnStepsDone(uint64_t num_done);

  // For the ballot: the newest version whose experts are all here.
  uint64_t ready_version() const;
  const ExpertTables& tables() const { return *current_; }
  // Of the local slots, in all layers; ascending, each once.
  std::vector<LayerExpert> LocalExperts(const ExpertPlacement& placement) const;
  ExpertMovePhase phase() const { return phase_; }
  // The newest plan of which nothing is left to do here; 0: none yet.
  uint64_t closed_plan() const { return closed_plan_; }
  // Of the moves that are here, still to be made or not.
  uint64_t newest_plan() const { return newest_plan_; }
  uint64_t newest_version() const { return newest_version_; }
  const ExpertMoverCounters& counters() const { return counters_; }

 private:
  struct Batch {
    uint64_t end = 0;  // Version of its last layer.
    std::vector<uint32_t> layers = {};
    std::vector<std::vector<uint32_t>> experts = {};  // Of each of the layers.
  };

  void MoveTo(ExpertMovePhase to);
  bool FitsNewestBatch(const RebalanceMessage& move) const;
  void MaybeStart();
  void Cancel();
  void MaybeRetire();
  void EndFront();
  void AddLocal(const ExpertPlacement& placement, uint32_t layer,
                std::vector<LayerExpert>* experts) const;
  // Experts of these layers that local slots have in `to` and not in `from`.
  std::vector<LayerExpert> LocalDifference(const std::vector<uint32_t>& layers,
                                           const ExpertPlacement& from,
                                           const ExpertPlacement& to) const;
  void Drop(std::vector<LayerExpert> experts);

  const ExpertMoverOptions options_;
  ExpertMovePhase phase_ = ExpertMovePhase::kIdle;
  std::unique_ptr<const ExpertTables> current_;
  std::unique_ptr<const ExpertTables> next_;  // Of the front batch.
  std::unique_ptr<const ExpertTables> old_;   // In kRetiring.
  std::vector<LayerExpert> wanted_;           // What the front batch loads.
  std::deque<Batch> batches_;                 // The first is under way.
  uint64_t newest_version_ = 0;               // Of a move that is here.
  uint64_t newest_plan_ = 0;
  uint64_t plan_end_ = 0;  // Version at which it ends.
  uint64_t closed_plan_ = 0;
  uint64_t num_done_ = 0;     // Steps.
  uint64_t switch_step_ = 0;  // The first with the newest tables.
  ExpertMoverCounters counters_;
};

}  // namespace baton

#endif  // BATON_ENGINE_EXPERT_MOVER_H_
