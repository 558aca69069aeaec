// A blocking barrier of threads and processes over shared memory, that can be
// ended.
#ifndef BATON_COMM_GROUP_BARRIER_H_
#define BATON_COMM_GROUP_BARRIER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace baton {

// Lies in the shared memory; zeroed, it is ready. Once ended it stays so.
struct GroupBarrierState {
  alignas(64) std::atomic<uint32_t> phase;  // Completed ones; a futex.
  alignas(64) std::atomic<uint32_t> num_arrived;
  std::atomic<uint32_t> end;  // Why it ended; 0: it has not.
};
// One for each member: how often it has arrived.
struct alignas(64) GroupBarrierArrivals {
  std::atomic<uint32_t> count;
};

// One process's view of the barrier. Thread-safe; each member arrives from one
// thread at a time.
class GroupBarrier final {
 public:
  struct Options {
    // Of the first member, for messages alone.
    int first_rank = 0;
    // Of one wait: then the barrier ends itself.
    absl::Duration deadline = absl::Seconds(5);
    // Looks for a moment before it blocks: where every member has a core.
    bool spins = false;
  };
  // Borrows both. All members have the same `arrivals`.
  GroupBarrier(const Options& options, GroupBarrierState* state,
               std::span<GroupBarrierArrivals> arrivals);

  // Waits until every member has arrived as often. False, at once or while it
  // waits: ended.
  bool Arrive(int member);
  // The same, but the last one to arrive calls `all_are_here` and waits like
  // the others, until somebody calls Release().
  template <typename AllAreHere>
  bool ArriveForRelease(int member, const AllAreHere& all_are_here) {
    if (ended()) return false;
    const uint32_t phase = state_->phase.load(std::memory_order_acquire);
    if (CountArrival(member)) all_are_here();
    return WaitForPhase(phase, member);
  }
  // Once for each time that all are here.
  void Release();

  // Wakes all; from any thread, of any process that has the memory.
  void End();
  bool ended() const { return state_->end.load() != 0; }
  // OK until it has ended.
  absl::Status status() const;
  // The ranks without which a wait met its deadline, ascending; else none.
  std::vector<uint32_t> missing_ranks() const;

 private:
  // True: the last one of its phase.
  bool CountArrival(int member);
  void EndFor(uint32_t reason);
  bool WaitForPhase(uint32_t old_phase, int member);

  const Options options_;
  GroupBarrierState* const state_;
  const std::span<GroupBarrierArrivals> arrivals_;
};

}  // namespace baton

#endif  // BATON_COMM_GROUP_BARRIER_H_
