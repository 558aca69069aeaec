#include "base/logging.h"

#include <limits.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
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

// Pipes take so much at once where they take anything.
constexpr size_t kPieceBytes = PIPE_BUF;

bool CanBeWritten() {
  pollfd out = {STDERR_FILENO, POLLOUT, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLOUT) != 0;
}

// The lines that a reader of stderr who stands still has cost.
void WriteWithoutBlocking(const std::string& text) {
  static std::mutex mutex;  // Else another thread fills what was free.
  static uint64_t num_lost = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  std::string lines = text;
  if (num_lost > 0) {
    lines = "W " + std::to_string(num_lost) +
            " lines of log were lost: nobody read them\n" + lines;
  }
  for (size_t at = 0; at < lines.size(); at += kPieceBytes) {
    if (!CanBeWritten()) {
      ++num_lost;
      return;
    }
    // Nothing to be done about a disk that is full.
    [[maybe_unused]] const ssize_t written =
        write(STDERR_FILENO, lines.data() + at,
              std::min(kPieceBytes, lines.size() - at));
  }
  num_lost = 0;
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
  WriteWithoutBlocking(stream_.str());
  if (severity_ == LogSeverity::kFatal) std::abort();
}

}  // namespace internal
}  // namespace baton
