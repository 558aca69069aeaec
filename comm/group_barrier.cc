#include "comm/group_barrier.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"

namespace baton {
namespace {

// Values of GroupBarrierState::end. From kDeadlineOfMember on: who waited.
constexpr uint32_t kToldTo = 1;
constexpr uint32_t kDeadlineOfMember = 2;

// About 20 us.
constexpr int kLooks = 1000;

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Shared between processes. `deadline`: of CLOCK_MONOTONIC. False: it passed.
bool FutexWait(std::atomic<uint32_t>* word, uint32_t value,
               const timespec& deadline) {
  const int64_t result = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value,
                                 &deadline, nullptr, FUTEX_BITSET_MATCH_ANY);
  return result == 0 || errno != ETIMEDOUT;
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

timespec MonotonicIn(absl::Duration timeout) {
  timespec now;
  CHECK_EQ(clock_gettime(CLOCK_MONOTONIC, &now), 0);
  return absl::ToTimespec(absl::DurationFromTimespec(now) + timeout);
}

}  // namespace

GroupBarrier::GroupBarrier(const Options& options, GroupBarrierState* state,
                           std::span<GroupBarrierArrivals> arrivals)
    : options_(options), state_(state), arrivals_(arrivals) {}

bool GroupBarrier::Arrive(int member) {
  if (ended()) return false;
  const uint32_t phase = state_->phase.load(std::memory_order_acquire);
  if (!CountArrival(member)) return WaitForPhase(phase, member);
  Release();
  return !ended();
}

bool GroupBarrier::CountArrival(int member) {
  arrivals_[member].count.fetch_add(1, std::memory_order_relaxed);
  const uint32_t num_arrived =
      state_->num_arrived.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (num_arrived < arrivals_.size()) return false;
  state_->num_arrived.store(0, std::memory_order_relaxed);
  return true;
}

void GroupBarrier::Release() {
  state_->phase.fetch_add(1, std::memory_order_release);
  FutexWakeAll(&state_->phase);
}

bool GroupBarrier::WaitForPhase(uint32_t old_phase, int member) {
  const auto released = [&] {
    return state_->phase.load(std::memory_order_acquire) != old_phase;
  };
  for (int i = 0; options_.spins && i < kLooks; ++i) {
    if (released()) return !ended();
    Pause();
  }
  if (released()) return !ended();
  const timespec deadline = MonotonicIn(options_.deadline);
  while (!released()) {
    if (FutexWait(&state_->phase, old_phase, deadline)) continue;
    if (!released()) EndFor(kDeadlineOfMember + static_cast<uint32_t>(member));
    return false;
  }
  return !ended();
}

void GroupBarrier::End() { EndFor(kToldTo); }

void GroupBarrier::EndFor(uint32_t reason) {
  uint32_t live = 0;
  if (state_->end.compare_exchange_strong(live, reason)) Release();
}

absl::Status GroupBarrier::status() const {
  const uint32_t end = state_->end.load();
  if (end == 0) return absl::OkStatus();
  if (end == kToldTo) {
    return absl::UnavailableError("the group's exchange was ended");
  }
  const uint32_t waiting = end - kDeadlineOfMember;
  const std::vector<uint32_t> missing = missing_ranks();
  return absl::DeadlineExceededError(absl::StrCat(
      "rank ", options_.first_rank + waiting, " waited ",
      absl::FormatDuration(options_.deadline), " in exchange ",
      arrivals_[waiting].count.load(), " of the group, without ",
      missing.empty() ? "another process"
                      : absl::StrCat("rank ", absl::StrJoin(missing, ", "))));
}

std::vector<uint32_t> GroupBarrier::missing_ranks() const {
  const uint32_t end = state_->end.load();
  if (end < kDeadlineOfMember) return {};
  const uint32_t count = arrivals_[end - kDeadlineOfMember].count.load();
  std::vector<uint32_t> missing;
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    if (arrivals_[i].count.load() == count) continue;
    missing.push_back(static_cast<uint32_t>(options_.first_rank + i));
  }
  return missing;
}

}  // namespace baton
