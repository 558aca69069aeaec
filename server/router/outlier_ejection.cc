#include "server/router/outlier_ejection.h"

#include <algorithm>

#include "base/logging.h"
#include "server/edge/grpc_status.h"
#include "server/edge/stream_budget.h"

namespace baton {
namespace {

// The others of a role are fine if so many of their calls are good for each one
// that brings nothing in time.
constexpr int64_t kGoodForALateOne = 4;

}  // namespace

CallOutcome OutcomeOf(const absl::Status& status, bool answered) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return CallOutcome::kGood;
    case absl::StatusCode::kCancelled:  // By us.
      return answered ? CallOutcome::kGood : CallOutcome::kNone;
    case absl::StatusCode::kDeadlineExceeded:
      return answered ? CallOutcome::kNone : CallOutcome::kDeadline;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      // With a reason the worker is alive and says why it can't: it drains, or
      // the other end of the transfer is gone; or we did not read, for a client
      // that reads slowly. Without, whatever was under way at the worker may
      // have ended so.
      return ErrorReason(status).has_value() || IsSlowReaderCut(status)
                 ? CallOutcome::kNone
                 : CallOutcome::kLost;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return CallOutcome::kFailed;
    default:  // The request's fault.
      return CallOutcome::kNone;
  }
}

std::string_view EjectionReasonName(EjectionReason reason) {
  switch (reason) {
    case EjectionReason::kInARow:
      return "in_a_row";
    case EjectionReason::kRatio:
      return "ratio";
    case EjectionReason::kTrial:
      return "trial";
  }
  return "";
}

void OutlierEjection::Join(WorkerId worker) {
  CHECK(workers_.try_emplace(worker, options_.window).second);
}

void OutlierEjection::Leave(WorkerId worker) {
  workers_.erase(worker);
  LetInWhoIsTooMany();
}

void OutlierEjection::SetServing(WorkerId worker, bool is_serving) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return;
  it->second.is_serving = is_serving;
  LetInWhoIsTooMany();
}

void OutlierEjection::OnRestart(WorkerId worker) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return;
  Worker& w = it->second;
  w.failures_in_a_row = 0;
  w.good.Clear();
  w.failed.Clear();
  w.late.Clear();
  // A trial that is under way was the old one's.
  if (w.state == EjectionState::kEjected ||
      w.state == EjectionState::kOnTrial) {
    MoveTo(&w, EjectionState::kReturning);
  }
}

EjectionState OutlierEjection::StateAt(WorkerId worker, absl::Time now) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return EjectionState::kIn;
  Worker& w = it->second;
  if (w.state == EjectionState::kEjected && now >= w.ejected_until) {
    MoveTo(&w, EjectionState::kReturning);
  }
  return w.state;
}

uint64_t OutlierEjection::OnCallBegan(WorkerId worker, absl::Time now) {
  const uint64_t call = next_call_++;
  if (StateAt(worker, now) == EjectionState::kReturning) {
    Worker& w = workers_.at(worker);
    MoveTo(&w, EjectionState::kOnTrial);
    w.trial = call;
  }
  return call;
}

void OutlierEjection::OnAnswered(WorkerId worker, uint64_t call,
                                 absl::Time now) {
  const auto it = workers_.find(worker);
  if (it == workers_.end()) return;
  Worker& w = it->second;
  if (w.state != EjectionState::kOnTrial || w.trial != call) return;
  MoveTo(&w, EjectionState::kIn);
  w.in_since = now;
}

std::optional<EjectionReason> OutlierEjection::OnCallEnded(WorkerId worker,
                                                           uint64_t call,
                                                           CallOutcome outcome,
                                                           absl::Time now) {
  const auto it = workers_.find(worker);
  if (it == workers_.end() || options_.failures_in_a_row == 0) return {};
  Worker& w = it->second;
  const bool counts = Counts(worker, call, outcome, now);
  if (outcome == CallOutcome::kDeadline) w.late.Add(now, 1);
  if (w.state == EjectionState::kOnTrial && call == w.trial) {
    return OnTrialEnded(&w, counts ? outcome : CallOutcome::kNone, now);
  }
  // What began before an ejection says nothing about the time after it.
  if (w.state != EjectionState::kIn || !counts) return {};
  if (outcome == CallOutcome::kGood) {
    w.failures_in_a_row = 0;
    w.good.Add(now, 1);
    return {};
  }
  ++w.failures_in_a_row;
  w.failed.Add(now, 1);
  w.first_call_after_loss = next_call_;
  const std::optional<EjectionReason> reason = ReasonToEject(&w, now);
  if (!reason.has_value() || num_out() >= max_out()) return {};
  Eject(&w, now);
  return reason;
}

std::optional<EjectionReason> OutlierEjection::OnTrialEnded(Worker* worker,
                                                            CallOutcome outcome,
                                                            absl::Time now) {
  if (outcome == CallOutcome::kGood) {
    MoveTo(worker, EjectionState::kIn);
    worker->in_since = now;
    return {};
  }
  if (outcome == CallOutcome::kNone) {
    MoveTo(worker, EjectionState::kReturning);
    return {};
  }
  Eject(worker, now);
  return EjectionReason::kTrial;
}

// Whether it is one more than those before it.
bool OutlierEjection::Counts(WorkerId id, uint64_t call, CallOutcome outcome,
                             absl::Time now) {
  switch (outcome) {
    case CallOutcome::kNone:
      return false;
    case CallOutcome::kGood:
    case CallOutcome::kFailed:
      return true;
    case CallOutcome::kLost:
      // A connection that breaks ends all calls on it: that is one failure.
      return call >= workers_.at(id).first_call_after_loss;
    case CallOutcome::kDeadline:
      return OthersAreFine(id, now);
  }
  return false;
}

// Else it is the clients, who give too little time, or all are too busy.
bool OutlierEjection::OthersAreFine(WorkerId id, absl::Time now) {
  int64_t num_good = 0;
  int64_t num_late = 0;
  for (auto& [other, worker] : workers_) {
    if (other == id) continue;
    num_good += worker.good.Sum(now);
    num_late += worker.late.Sum(now);
  }
  return num_good > 0 && num_good >= kGoodForALateOne * num_late;
}

std::optional<EjectionReason> OutlierEjection::ReasonToEject(Worker* worker,
                                                             absl::Time now) {
  if (worker->failures_in_a_row >= options_.failures_in_a_row) {
    return EjectionReason::kInARow;
  }
  const int64_t num_failed = worker->failed.Sum(now);
  const int64_t num_calls = num_failed + worker->good.Sum(now);
  if (num_calls >= options_.min_calls &&
      static_cast<double>(num_failed) >=
          options_.failure_ratio * static_cast<double>(num_calls)) {
    return EjectionReason::kRatio;
  }
  return std::nullopt;
}

void OutlierEjection::Eject(Worker* worker, absl::Time now) {
  const bool was_in = worker->state == EjectionState::kIn;
  if (was_in && now - worker->in_since >= options_.max_ejection) {
    worker->num_ejections = 0;
  }
  absl::Duration duration = options_.first_ejection;
  for (uint32_t i = 0;
       i < worker->num_ejections && duration < options_.max_ejection; ++i) {
    duration *= 2;
  }
  worker->ejected_until = now + std::min(duration, options_.max_ejection);
  ++worker->num_ejections;
  MoveTo(worker, EjectionState::kEjected);
}

// The one writer of a worker's state.
void OutlierEjection::MoveTo(Worker* worker, EjectionState to) {
  CHECK(IsLegalTransition(worker->state, to))
      << static_cast<int>(worker->state) << " to " << static_cast<int>(to);
  worker->state = to;
  if (to != EjectionState::kIn) return;
  worker->failures_in_a_row = 0;
  worker->good.Clear();
  worker->failed.Clear();
}

int OutlierEjection::num_out() const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [](const auto& entry) {
        return entry.second.is_serving &&
               entry.second.state != EjectionState::kIn;
      }));
}

int OutlierEjection::max_out() const {
  const auto num_serving =
      std::count_if(workers_.begin(), workers_.end(),
                    [](const auto& entry) { return entry.second.is_serving; });
  return static_cast<int>(options_.max_ejected_share *
                          static_cast<double>(num_serving));
}

// Whose time is over first.
void OutlierEjection::LetInWhoIsTooMany() {
  while (num_out() > max_out()) {
    Worker* first = nullptr;
    for (auto& [id, worker] : workers_) {
      if (!worker.is_serving || worker.state == EjectionState::kIn) continue;
      if (first != nullptr && first->ejected_until <= worker.ejected_until) {
        continue;
      }
      first = &worker;
    }
    first->in_since = first->ejected_until;
    MoveTo(first, EjectionState::kIn);
  }
}

void OutlierEjection::CheckInvariants() const {
  CHECK_LE(num_out(), max_out());
  for (const auto& [id, worker] : workers_) {
    CHECK(worker.state == EjectionState::kIn || worker.num_ejections > 0);
    CHECK(worker.state != EjectionState::kOnTrial || worker.trial > 0);
  }
}

}  // namespace baton
