#include "comm/group_barrier.h"

#include <time.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/futex.h"

namespace baton {
namespace {

// Values of GroupBarrierState::end. From kDeadlineOfMember on: who waited.
constexpr uint32_t kToldTo = 1;
constexpr uint32_t kDeadlineOfMember = 2;

// About 20 us.
constexpr int kLooks = 1000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
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
