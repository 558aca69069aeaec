// Which workers of a role take nothing for a while because calls to them fail.
//
//   kIn ──fails in a row, or too often──► kEjected ──time is over──► kReturning
//    ▲                                       ▲        or restarted      │  ▲
//    └──────── the trial was answered ───────┴──failed── kOnTrial ◄─────┘  │
//                                                           └──no verdict──┘
//
// Probes see a worker that is gone or says that it does not serve; this sees
// one that says it does and fails what it is sent. Each ejection that follows
// soon on the one before lasts twice as long. Whoever comes back gets one
// request at a time until one was answered: a first token, or a whole prompt.
#ifndef BATON_SERVER_ROUTER_OUTLIER_EJECTION_H_
#define BATON_SERVER_ROUTER_OUTLIER_EJECTION_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/router/windowed_count.h"
#include "server/router/worker_state.h"

namespace baton {

enum class EjectionState : uint8_t {
  kIn,         // Takes requests.
  kEjected,    // Takes none.
  kReturning,  // Takes one, the trial.
  kOnTrial,    // The trial is under way: takes none.
};
inline constexpr int kNumEjectionStates = 4;

constexpr bool IsLegalTransition(EjectionState from, EjectionState to) {
  using enum EjectionState;
  switch (from) {
    case kIn:  // Calls failed.
      return to == kEjected;
    case kEjected:  // Its time is over, or it has restarted; too many of too
                    // few are out.
      return to == kReturning || to == kIn;
    case kReturning:  // The trial begins; too many of too few are out.
      return to == kOnTrial || to == kIn;
    case kOnTrial:  // It was answered, or too many of too few are out; it
                    // failed; it ended for another reason.
      return to == kIn || to == kEjected || to == kReturning;
  }
  return false;
}

// What a call's end says of its worker.
enum class CallOutcome : uint8_t {
  kGood,
  kNone,      // Nothing.
  kFailed,    // Its own fault.
  kLost,      // The connection broke, and with it whatever was under way there.
  kDeadline,  // It brought nothing in time.
};

// `answered`: it has brought tokens or computed the prompt.
CallOutcome OutcomeOf(const absl::Status& status, bool answered);

enum class EjectionReason : uint8_t { kInARow, kRatio, kTrial };
inline constexpr int kNumEjectionReasons = 3;
std::string_view EjectionReasonName(EjectionReason reason);

// Of one role. Pure; times are of one clock. Thread-compatible.
class OutlierEjection final {
 public:
  struct Options {
    // So many failures, none of them good in between. 0: nobody is ejected.
    uint32_t failures_in_a_row = 5;
    // Or such a part of at least so many calls within the window.
    double failure_ratio = 0.5;
    uint32_t min_calls = 20;
    absl::Duration window = absl::Seconds(30);
    // The first ejection; and the longest. Who has been in for the longest
    // begins anew.
    absl::Duration first_ejection = absl::Seconds(5);
    absl::Duration max_ejection = absl::Minutes(5);
    // Of those that serve; rounded down.
    double max_ejected_share = 0.5;
  };

  explicit OutlierEjection(const Options& options) : options_(options) {}

  void Join(WorkerId worker);
  void Leave(WorkerId worker);
  // Whether probes find it well. Who is not is none of those that are counted.
  void SetServing(WorkerId worker, bool is_serving);
  // Another process is there now.
  void OnRestart(WorkerId worker);

  EjectionState StateAt(WorkerId worker, absl::Time now);

  // The call's name; they grow. A call to one that is kReturning is its trial.
  uint64_t OnCallBegan(WorkerId worker, absl::Time now);
  // It goes on, but has brought what makes it good.
  void OnAnswered(WorkerId worker, uint64_t call, absl::Time now);
  // Why it is ejected now, if it is. Of a worker that left: nothing.
  std::optional<EjectionReason> OnCallEnded(WorkerId worker, uint64_t call,
                                            CallOutcome outcome,
                                            absl::Time now);

  // Those that serve and are not kIn.
  int num_out() const;
  // REQUIRES: what every public function leaves behind; dies else.
  void CheckInvariants() const;

 private:
  struct Worker {
    explicit Worker(absl::Duration window)
        : good(window), failed(window), late(window) {}
    EjectionState state = EjectionState::kIn;
    bool is_serving = false;
    uint32_t failures_in_a_row = 0;
    WindowedCount good;
    WindowedCount failed;
    WindowedCount late;  // kDeadline, whoever's fault that was.
    uint64_t first_call_after_loss = 0;
    // kOnTrial.
    uint64_t trial = 0;
    // How often in a row it was ejected, and until or since when.
    uint32_t num_ejections = 0;
    absl::Time ejected_until = absl::InfinitePast();
    absl::Time in_since = absl::InfinitePast();
  };

  void MoveTo(Worker* worker, EjectionState to);
  void Eject(Worker* worker, absl::Time now);
  std::optional<EjectionReason> OnTrialEnded(Worker* worker,
                                             CallOutcome outcome,
                                             absl::Time now);
  bool Counts(WorkerId id, uint64_t call, CallOutcome outcome, absl::Time now);
  bool OthersAreFine(WorkerId id, absl::Time now);
  std::optional<EjectionReason> ReasonToEject(Worker* worker, absl::Time now);
  int max_out() const;
  void LetInWhoIsTooMany();

  const Options options_;
  uint64_t next_call_ = 1;
  std::map<WorkerId, Worker> workers_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_OUTLIER_EJECTION_H_
