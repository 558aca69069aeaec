#include "server/cli/top.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/field_error.h"
#include "server/cli/top_table.h"
#include "server/cli/worker_poll.h"

namespace baton {
namespace {

constexpr char kClearScreen[] = "\x1b[2J";
constexpr char kHome[] = "\x1b[H";
constexpr char kClearToLineEnd[] = "\x1b[K";
constexpr char kClearBelow[] = "\x1b[J";
constexpr TerminalSize kUsualSize = {.columns = 80, .rows = 24};

void Wait(absl::Duration duration) {
  poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(duration)));
}

TerminalSize ReadTerminalSize() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
    return kUsualSize;
  }
  return {.columns = size.ws_col, .rows = size.ws_row};
}

int ExitCodeOf(const std::vector<WorkerSample>& samples) {
  const bool all = std::all_of(
      samples.begin(), samples.end(),
      [](const WorkerSample& sample) { return sample.status.ok(); });
  return all ? kExitOk : kExitFailed;
}

}  // namespace

void AddTopFlags(Flags& flags, TopOptions* options) {
  flags.Add(&options->workers,
            {.name = "workers",
             .help = "host:port of each worker, with commas; `baton local up` "
                     "says which.",
             .required = true});
  flags.Add(&options->interval,
            {.name = "interval",
             .help = "Between two tables; rates are of this time.",
             .min = 0.001,
             .max = 3600});
  flags.Add(&options->timeout,
            {.name = "timeout",
             .help = "How long to wait for the answers to a table.",
             .min = 0.001,
             .max = 3600});
  flags.Add(&options->once,
            {.name = "once",
             .help = "One plain table, after one interval, for scripts; exit "
                     "code 1 if a worker did not answer."});
  flags.Add(&options->count,
            {.name = "count", .help = "Tables to show; 0: until Ctrl-C."});
}

absl::Status ValidateTop(const TopOptions& options) {
  if (options.workers.empty()) {
    return FieldError("workers", "name a worker, as host:port");
  }
  for (const std::string& worker : options.workers) {
    const absl::Status valid = CheckHostPort(worker);
    if (!valid.ok()) {
      return FieldError("workers",
                        absl::StrCat("\"", worker, "\": ", valid.message()));
    }
  }
  if (options.once && options.count > 0) {
    return FieldError("once", "is one table: it contradicts --count");
  }
  return absl::OkStatus();
}

int RunTop(const TopOptions& options, const Console& console) {
  const MonotonicClock clock;
  WorkerPoll poll(options.workers, &clock);
  const bool is_live = options.terminal_size && !options.once;
  const uint32_t count = options.once ? 1 : options.count;
  std::vector<WorkerSample> before;
  if (options.once) {
    before = poll.Ask(options.timeout);
    Wait(options.interval);
  }
  if (is_live) console.out << kClearScreen;
  for (uint32_t shown = 1; console.out.good(); ++shown) {
    std::vector<WorkerSample> now = poll.Ask(options.timeout);
    const std::string tables = TopTables(options.workers, before, now);
    if (is_live) {
      console.out << TerminalFrame(tables, options.terminal_size());
    } else {
      console.out << (shown > 1 ? "\n" : "") << tables;
    }
    console.out << std::flush;
    if (options.once) return ExitCodeOf(now);
    if (shown == count) break;
    before = std::move(now);
    Wait(options.interval);
  }
  return kExitOk;
}

std::function<TerminalSize()> StdoutTerminal() {
  if (isatty(STDOUT_FILENO) == 0) return {};
  return ReadTerminalSize;
}

std::string TerminalFrame(const std::string& text, const TerminalSize& size) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  lines.pop_back();  // Behind the last line's end.
  // The last row stays for the cursor.
  const auto room = static_cast<size_t>(std::max(size.rows - 1, 1));
  if (lines.size() > room) {
    lines.resize(room);
    lines.back() = "... the terminal is too small for more";
  }
  std::string frame = kHome;
  for (const std::string& line : lines) {
    absl::StrAppend(&frame, line.substr(0, static_cast<size_t>(size.columns)),
                    kClearToLineEnd, "\n");
  }
  return frame + kClearBelow;
}

}  // namespace baton
