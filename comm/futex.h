// Waiting on a word of memory, also between processes that share it.
#ifndef BATON_COMM_FUTEX_H_
#define BATON_COMM_FUTEX_H_

#include <time.h>

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace baton {

// All thread-safe.

// Of CLOCK_MONOTONIC.
timespec MonotonicIn(absl::Duration timeout);
// Until a wake, at once if the word is not `value`, or for no reason. False:
// the deadline, of CLOCK_MONOTONIC, passed.
bool FutexWait(std::atomic<uint32_t>* word, uint32_t value,
               const timespec& deadline);
void FutexWakeAll(std::atomic<uint32_t>* word);

}  // namespace baton

#endif  // BATON_COMM_FUTEX_H_
