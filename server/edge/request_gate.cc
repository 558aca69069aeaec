#include "server/edge/request_gate.h"

#include <utility>

#include "base/logging.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

// Another process, or this one's successor, should be there by then.
constexpr absl::Duration kDrainRetryDelay = absl::Seconds(1);

}  // namespace

RequestGate::RequestGate(std::function<void()> on_empty)
    : on_empty_(std::move(on_empty)) {}

absl::Status RequestGate::Enter() {
  absl::MutexLock lock(&mutex_);
  if (closed_) {
    return WithRetryDelay(
        WithReason(absl::UnavailableError("draining"), "DRAINING"),
        kDrainRetryDelay);
  }
  ++inside_;
  return absl::OkStatus();
}

void RequestGate::Leave() {
  bool empty = false;
  {
    absl::MutexLock lock(&mutex_);
    CHECK_GT(inside_, 0u);
    --inside_;
    empty = closed_ && inside_ == 0;
  }
  if (empty && on_empty_) on_empty_();
}

void RequestGate::Close() {
  bool empty = false;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    empty = inside_ == 0;
  }
  if (empty && on_empty_) on_empty_();
}

uint64_t RequestGate::inside() const {
  absl::MutexLock lock(&mutex_);
  return inside_;
}

}  // namespace baton
