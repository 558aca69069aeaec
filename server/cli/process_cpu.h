// CPU time that processes have used, from the kernel's accounts.
#ifndef BATON_SERVER_CLI_PROCESS_CPU_H_
#define BATON_SERVER_CLI_PROCESS_CPU_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton {

struct ProcessUsage {
  pid_t pid = 0;
  std::string name;  // As the kernel has it: at most 15 characters.
  // User and system, all threads; to 10 ms.
  absl::Duration cpu_time = absl::ZeroDuration();
  uint64_t resident_bytes = 0;
};

// NOT_FOUND: no such process.
absl::StatusOr<ProcessUsage> ReadProcessUsage(pid_t pid);

// The text of /proc/PID/stat; the kernel's clock ticks `ticks_per_second`
// times.
absl::StatusOr<ProcessUsage> ParseProcessStat(const std::string& stat,
                                              int64_t ticks_per_second,
                                              int64_t page_bytes);

// Of this process, all threads, to the microsecond.
absl::Duration OwnCpuTime();

}  // namespace baton

#endif  // BATON_SERVER_CLI_PROCESS_CPU_H_
