#include "server/cli/process_cpu.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace baton {
namespace {

// Fields of /proc/PID/stat counted from the state, which follows the name in
// brackets: proc(5) counts it as field 3.
constexpr size_t kUserTicks = 14 - 3;
constexpr size_t kSystemTicks = 15 - 3;
constexpr size_t kResidentPages = 24 - 3;

}  // namespace

absl::StatusOr<ProcessUsage> ParseProcessStat(const std::string& stat,
                                              int64_t ticks_per_second,
                                              int64_t page_bytes) {
  // The name may hold spaces and brackets of its own.
  const size_t name_start = stat.find('(');
  const size_t name_end = stat.rfind(") ");
  std::vector<std::string> fields;
  if (name_start < name_end && name_end != std::string::npos) {
    fields = absl::StrSplit(stat.substr(name_end + 2), ' ');
  }
  pid_t pid = 0;
  int64_t user = 0;
  int64_t system = 0;
  int64_t pages = 0;
  if (fields.size() <= kResidentPages ||
      !absl::SimpleAtoi(stat.substr(0, name_start), &pid) ||
      !absl::SimpleAtoi(fields[kUserTicks], &user) ||
      !absl::SimpleAtoi(fields[kSystemTicks], &system) ||
      !absl::SimpleAtoi(fields[kResidentPages], &pages)) {
    return absl::InternalError("a /proc/PID/stat of an unknown form: " + stat);
  }
  return ProcessUsage{
      .pid = pid,
      .name = stat.substr(name_start + 1, name_end - name_start - 1),
      .cpu_time = absl::Seconds(1) * (user + system) / ticks_per_second,
      .resident_bytes = static_cast<uint64_t>(pages * page_bytes)};
}

absl::StatusOr<ProcessUsage> ReadProcessUsage(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  if (!file) {
    return absl::NotFoundError("no process has the id " + std::to_string(pid));
  }
  const std::string stat(std::istreambuf_iterator<char>(file), {});
  return ParseProcessStat(stat, sysconf(_SC_CLK_TCK), sysconf(_SC_PAGESIZE));
}

absl::Duration OwnCpuTime() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) +
         absl::DurationFromTimeval(usage.ru_stime);
}

}  // namespace baton
