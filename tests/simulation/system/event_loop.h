// What happens next in a simulated system, and the log of what did.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_EVENT_LOOP_H_
#define BATON_TESTS_SIMULATION_SYSTEM_EVENT_LOOP_H_

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "tests/simulation/system/dice.h"

namespace baton {

// Events run one after the other, each at its time; those of one time in the
// order in which they were asked for. One thread.
class EventLoop final {
 public:
  using Event = absl::AnyInvocable<void()>;
  struct Timer {
    absl::Time due = absl::InfinitePast();
    uint64_t number = 0;
    friend bool operator<(const Timer& a, const Timer& b) {
      return std::pair(a.due, a.number) < std::pair(b.due, b.number);
    }
  };

  // With `trace` each line of the log is printed, too.
  EventLoop(uint64_t seed, bool trace) : dice_(seed), trace_(trace) {}

  absl::Time now() const { return now_; }
  const Clock& clock() const { return clock_; }
  Dice& dice() { return dice_; }

  Timer After(absl::Duration delay, Event event);
  // Nothing if it has run.
  void Cancel(const Timer& timer) { events_.erase(timer); }
  // False: nothing is to happen any more.
  bool RunNext();

  // Something happened, to `who`.
  void Note(std::string_view what, uint64_t who, uint64_t detail = 0);
  uint64_t num_noted() const { return num_noted_; }
  // Of all that was noted, with its times.
  uint64_t log_hash() const { return log_hash_; }

 private:
  class LoopClock final : public Clock {
   public:
    explicit LoopClock(const EventLoop* loop) : loop_(loop) {}
    absl::Time Now() const override { return loop_->now(); }

   private:
    const EventLoop* const loop_;
  };

  void Fold(uint64_t word);

  const LoopClock clock_{this};
  Dice dice_;
  const bool trace_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t num_asked_ = 0;
  std::map<Timer, Event> events_;
  uint64_t num_noted_ = 0;
  uint64_t log_hash_ = 0xcbf29ce484222325;  // FNV-1a's.
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_EVENT_LOOP_H_
