#include "base/logging.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace baton {
namespace {

std::atomic<int> vlog_level{0};

constexpr char SeverityLetter(LogSeverity severity) {
  switch (severity) {
    case LogSeverity::kInfo:
      return 'I';
    case LogSeverity::kWarning:
      return 'W';
    case LogSeverity::kError:
      return 'E';
    case LogSeverity::kFatal:
      return 'F';
  }
  return '?';
}

}  // namespace

void SetVlogLevel(int level) {
  vlog_level.store(level, std::memory_order_relaxed);
}
int VlogLevel() { return vlog_level.load(std::memory_order_relaxed); }

namespace internal {

LogLine::LogLine(LogSeverity severity, const char* file, int line)
    : severity_(severity) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc;
  gmtime_r(&now.tv_sec, &utc);
  const char* base_name = std::strrchr(file, '/');
  char prefix[96];
  std::snprintf(
      prefix, sizeof(prefix),
      "%c %04d-%02d-%02dT%02d:%02d:%02d.%06ldZ %ld %s:%d] ",
      SeverityLetter(severity), utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
      utc.tm_hour, utc.tm_min, utc.tm_sec, now.tv_nsec / 1000,
      static_cast<long>(syscall(SYS_gettid)),  // NOLINT(google-runtime-int)
      base_name == nullptr ? file : base_name + 1, line);
  stream_ << prefix;
}

LogLine::~LogLine() {
  stream_ << '\n';
  const std::string text = stream_.str();
  // Nothing to be done about a stderr that cannot be written.
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, text.data(), text.size());
  if (severity_ == LogSeverity::kFatal) std::abort();
}

}  // namespace internal
}  // namespace baton
