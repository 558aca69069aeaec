// Log lines of `key value` text on stderr, and CHECKs for our own bugs.
//
//   LOG(INFO) << "start role decode port " << port;
//   VLOG(1) << "request " << id << " phase decoding";
//   CHECK_LE(used, total) << "pool " << name;
//
// A line is written whole by one write(2), so lines of threads do not mix.
// Thread-safe. Never log prompts or generated text.
#ifndef BATON_BASE_LOGGING_H_
#define BATON_BASE_LOGGING_H_

#include <sstream>

namespace baton {

enum class LogSeverity { kInfo, kWarning, kError, kFatal };

// VLOG(n) writes when n <= the level; 0 by default. Set once, in main.
void SetVlogLevel(int level);
int VlogLevel();

namespace internal {

// One line: collected by operator<<, written by the destructor; kFatal aborts.
class LogLine {
 public:
  LogLine(LogSeverity severity, const char* file, int line);
  ~LogLine();
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  std::ostream& stream() { return stream_; }

 private:
  const LogSeverity severity_;
  std::ostringstream stream_;
};

// Gives both branches of CHECK's conditional the type void.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace internal
}  // namespace baton

#define BATON_LOG_INFO ::baton::LogSeverity::kInfo
#define BATON_LOG_WARNING ::baton::LogSeverity::kWarning
#define BATON_LOG_ERROR ::baton::LogSeverity::kError
#define BATON_LOG_FATAL ::baton::LogSeverity::kFatal

#define LOG(severity) \
  ::baton::internal::LogLine(BATON_LOG_##severity, __FILE__, __LINE__).stream()

#define VLOG(level)                                       \
  ((level) > ::baton::VlogLevel()) ? static_cast<void>(0) \
                                   : ::baton::internal::Voidify() & LOG(INFO)

// On in production: a bug of ours ends the process with file and line. Nothing
// that a client sends may decide a CHECK.
#define CHECK(condition)                       \
  (condition) ? static_cast<void>(0)           \
              : ::baton::internal::Voidify() & \
                    LOG(FATAL) << "CHECK failed: " #condition " "

#define BATON_CHECK_OP(op, a, b)                                         \
  ((a)op(b)) ? static_cast<void>(0)                                      \
             : ::baton::internal::Voidify() &                            \
                   LOG(FATAL) << "CHECK failed: " #a " " #op " " #b " (" \
                              << (a) << " vs " << (b) << ") "
#define CHECK_EQ(a, b) BATON_CHECK_OP(==, a, b)
#define CHECK_NE(a, b) BATON_CHECK_OP(!=, a, b)
#define CHECK_LT(a, b) BATON_CHECK_OP(<, a, b)
#define CHECK_LE(a, b) BATON_CHECK_OP(<=, a, b)
#define CHECK_GT(a, b) BATON_CHECK_OP(>, a, b)
#define CHECK_GE(a, b) BATON_CHECK_OP(>=, a, b)
// Evaluates its argument once.
#define CHECK_OK(expression)                                             \
  for (const auto& checked_status = (expression); !checked_status.ok();) \
  LOG(FATAL) << "CHECK failed: " #expression " is "                      \
             << checked_status.ToString() << " "

// For per-token code: compiled, but tested only without NDEBUG (sanitizer
// builds).
#ifdef NDEBUG
#define DCHECK(condition) CHECK(true || (condition))
#else
#define DCHECK(condition) CHECK(condition)
#endif

#endif  // BATON_BASE_LOGGING_H_
