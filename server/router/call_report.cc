#include "server/router/call_report.h"

#include "server/router/outlier_ejection.h"

namespace baton {
namespace {

// gRPC's timer may be this early.
constexpr std::chrono::milliseconds kDeadlineSlack(5);

}  // namespace

void CallReport::OnAnswered() {
  if (answered_.exchange(true)) return;
  options_.pool->OnCallAnswered(options_.worker, options_.call);
}

void CallReport::OnEnded(const absl::Status& status) {
  // At the client's deadline we cancel its calls, if they have not ended by
  // their own.
  const bool is_late =
      absl::IsCancelled(status) &&
      std::chrono::system_clock::now() + kDeadlineSlack >= options_.deadline;
  CallOutcome outcome =
      OutcomeOf(is_late ? absl::DeadlineExceededError("") : status, answered_);
  if (outcome == CallOutcome::kDeadline && options_.needs_answer != nullptr &&
      !options_.needs_answer->answered()) {
    outcome = CallOutcome::kNone;
  }
  options_.pool->OnCallEnded(options_.worker, options_.call, outcome);
}

void CallReport::OnNeverBegan() {
  options_.pool->OnCallEnded(options_.worker, options_.call,
                             CallOutcome::kNone);
}

}  // namespace baton
