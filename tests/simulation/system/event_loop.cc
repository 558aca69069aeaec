#include "tests/simulation/system/event_loop.h"

#include <algorithm>
#include <iostream>
#include <utility>

namespace baton {

EventLoop::Timer EventLoop::After(absl::Duration delay, Event event) {
  const Timer timer = {now_ + std::max(delay, absl::ZeroDuration()),
                       ++num_asked_};
  events_.emplace(timer, std::move(event));
  return timer;
}

bool EventLoop::RunNext() {
  if (events_.empty()) return false;
  auto next = events_.extract(events_.begin());
  now_ = next.key().due;
  next.mapped()();
  return true;
}

void EventLoop::Note(std::string_view what, uint64_t who, uint64_t detail) {
  ++num_noted_;
  for (const char letter : what) {
    log_hash_ =
        (log_hash_ ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  Fold(who);
  Fold(detail);
  Fold(static_cast<uint64_t>(absl::ToUnixNanos(now_)));
  if (!trace_) return;
  std::cerr << absl::FormatDuration(now_ - absl::UnixEpoch()) << ' ' << what
            << ' ' << who << ' ' << detail << '\n';
}

void EventLoop::Fold(uint64_t word) {
  log_hash_ = (log_hash_ ^ word) * 0x100000001b3;
  log_hash_ ^= log_hash_ >> 32;
}

}  // namespace baton
