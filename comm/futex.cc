#include "comm/futex.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "base/logging.h"

namespace baton {

static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

timespec MonotonicIn(absl::Duration timeout) {
  timespec now;
  CHECK_EQ(clock_gettime(CLOCK_MONOTONIC, &now), 0);
  return absl::ToTimespec(absl::DurationFromTimespec(now) + timeout);
}

bool FutexWait(std::atomic<uint32_t>* word, uint32_t value,
               const timespec& deadline) {
  const int64_t result = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value,
                                 &deadline, nullptr, FUTEX_BITSET_MATCH_ANY);
  return result == 0 || errno != ETIMEDOUT;
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace baton
