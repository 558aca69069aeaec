#include "server/router/call_report.h"

#include "server/edge/grpc_status.h"
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
  if (CallReport* const prefill = options_.prefill; prefill != nullptr) {
    if (outcome == CallOutcome::kDeadline && !prefill->answered()) {
      outcome = CallOutcome::kNone;
    }
    if (outcome == CallOutcome::kLost && absl::IsAborted(status)) {
      prefill->OnKvLost();
    }
  }
  if (const auto delay = RetryDelay(status);
      delay.has_value() && absl::IsResourceExhausted(status)) {
    options_.pool->OnFull(options_.worker, *delay);
  }
  if (kv_lost_.load()) return;
  options_.pool->OnCallEnded(options_.worker, options_.call, outcome);
}

void CallReport::OnKvLost() {
  kv_lost_.store(true);
  options_.pool->OnCallEnded(options_.worker, options_.call,
                             CallOutcome::kLost);
}

void CallReport::OnNeverBegan() {
  options_.pool->OnCallEnded(options_.worker, options_.call,
                             CallOutcome::kNone);
}

void RouteReports::Make(WorkerPool* pool, const Route& route,
                        std::chrono::system_clock::time_point deadline) {
  CallReport::Options options = {.pool = pool,
                                 .worker = route.decode,
                                 .call = route.decode_call,
                                 .deadline = deadline};
  if (route.prefill.has_value()) {
    CallReport::Options of_prefill = options;
    of_prefill.worker = *route.prefill;
    of_prefill.call = route.prefill_call;
    options.prefill = &prefill.emplace(of_prefill);
  }
  decode.emplace(options);
}

}  // namespace baton
