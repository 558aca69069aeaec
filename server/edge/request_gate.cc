#include "server/edge/request_gate.h"

#include <utility>

#include "base/logging.h"
#include "base/status_macros.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

// Another process, or this one's successor, should be there by then.
constexpr absl::Duration kDrainRetryDelay = absl::Seconds(1);

}  // namespace

absl::Status DrainingError() {
  return WithRetryDelay(
      WithReason(absl::UnavailableError("draining"), "DRAINING"),
      kDrainRetryDelay);
}

RequestGate::RequestGate(std::function<void()> on_empty)
    : on_empty_(std::move(on_empty)) {}

absl::Status RequestGate::EnterWith(const RequestSize& size) {
  RETURN_IF_ERROR(Enter());
  absl::Status admitted = admit_ ? admit_(size) : absl::OkStatus();
  if (!admitted.ok()) Leave();
  return admitted;
}

absl::Status RequestGate::Enter() {
  absl::MutexLock lock(&mutex_);
  if (closed_) return DrainingError();
  ++inside_;
  return absl::OkStatus();
}

void RequestGate::Leave(const void* key) {
  bool empty = false;
  std::function<void()> forgotten;  // Destroyed without the lock.
  {
    absl::MutexLock lock(&mutex_);
    if (const auto it = cuts_.find(key); it != cuts_.end()) {
      forgotten = std::move(it->second);
      cuts_.erase(it);
    }
    CHECK_GT(inside_, 0u);
    --inside_;
    empty = closed_ && inside_ == 0;
  }
  if (empty && on_empty_) on_empty_();
}

void RequestGate::Close() {
  bool empty = false;
  absl::flat_hash_map<const void*, std::function<void()>> closes;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    closes.swap(closes_);
    empty = inside_ == 0;
  }
  for (const auto& [key, on_close] : closes) on_close();
  if (empty && on_empty_) on_empty_();
}

void RequestGate::OnClose(const void* key, std::function<void()> on_close) {
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_) {
      CHECK(closes_.emplace(key, std::move(on_close)).second);
      return;
    }
  }
  on_close();
}

void RequestGate::ForgetOnClose(const void* key) {
  absl::MutexLock lock(&mutex_);
  closes_.erase(key);
}

void RequestGate::OnCut(const void* key, const std::function<void()>& cut) {
  {
    absl::MutexLock lock(&mutex_);
    if (!cut_) {
      CHECK(cuts_.emplace(key, cut).second);
      return;
    }
  }
  cut();
}

void RequestGate::Cut() {
  absl::flat_hash_map<const void*, std::function<void()>> cuts;
  {
    absl::MutexLock lock(&mutex_);
    cut_ = true;
    cuts.swap(cuts_);
  }
  for (const auto& [key, cut] : cuts) cut();
}

bool RequestGate::is_cut() const {
  absl::MutexLock lock(&mutex_);
  return cut_;
}

uint64_t RequestGate::inside() const {
  absl::MutexLock lock(&mutex_);
  return inside_;
}

}  // namespace baton
