#include "base/fault_point.h"

#ifdef BATON_FAULT_POINTS

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string_view>

#include "base/logging.h"

namespace baton {
namespace {

enum class Action { kNone, kKill, kStop, kFail, kDelay };

struct Rule {
  Action action = Action::kNone;
  int delay_milliseconds = 0;
  uint64_t count = 0;  // 0: each time.
};

// In the order of FaultPoint.
constexpr const char* kNames[] = {"kv_export_opened", "kv_export_blocks",
                                  "kv_export_tail",   "kv_export_done",
                                  "kv_import_open",   "kv_import_block",
                                  "kv_import_cut",    "kv_import_tail",
                                  "kv_import_done",   "kv_import_done_twice",
                                  "vote_post",        "vote_sent",
                                  "tokens_drawn",     "drain"};
constexpr int kNumPoints = std::size(kNames);
static_assert(static_cast<int>(FaultPoint::kDrain) + 1 == kNumPoints);

// One process, one set of rules: written before there are other threads.
Rule rules[kNumPoints];
std::atomic<uint64_t> reached[kNumPoints];

int IndexOf(std::string_view name) {
  for (int i = 0; i < kNumPoints; ++i) {
    if (name == kNames[i]) return i;
  }
  return -1;
}

// False: there is no such action.
bool ReadAction(const std::string& text, Rule* rule) {
  if (text == "kill") rule->action = Action::kKill;
  if (text == "stop") rule->action = Action::kStop;
  if (text == "fail") rule->action = Action::kFail;
  if (text.compare(0, 5, "delay") == 0) {
    rule->action = Action::kDelay;
    rule->delay_milliseconds = std::atoi(text.c_str() + 5);
    if (rule->delay_milliseconds <= 0) return false;
  }
  return rule->action != Action::kNone;
}

std::string ReadRule(const std::string& text) {
  std::istringstream parts(text);
  std::string name, action, count;
  std::getline(parts, name, ':');
  std::getline(parts, action, ':');
  Rule rule;
  const int index = IndexOf(name);
  if (index < 0) return "there is no point " + name;
  if (!ReadAction(action, &rule)) return "there is no action " + action;
  if (std::getline(parts, count)) {
    rule.count = std::strtoull(count.c_str(), nullptr, 10);
    if (rule.count == 0) return "not a count: " + count;
  }
  rules[index] = rule;
  return "";
}

}  // namespace

std::string ArmFaultPoints(const std::string& text) {
  std::istringstream rest(text);
  for (std::string rule; std::getline(rest, rule, ',');) {
    if (std::string problem = ReadRule(rule); !problem.empty()) return problem;
  }
  return "";
}

bool ReachFaultPoint(FaultPoint point) {
  const int index = static_cast<int>(point);
  const Rule& rule = rules[index];
  if (rule.action == Action::kNone) return false;
  const uint64_t times = reached[index].fetch_add(1) + 1;
  if (rule.count != 0 && rule.count != times) return false;
  LOG(WARNING) << "fault point " << kNames[index] << " time " << times;
  switch (rule.action) {
    case Action::kKill:
      kill(getpid(), SIGKILL);
      while (true) pause();
    case Action::kStop:
      kill(getpid(), SIGSTOP);
      return false;
    case Action::kDelay:
      poll(nullptr, 0, rule.delay_milliseconds);
      return false;
    case Action::kFail:
    case Action::kNone:
      break;
  }
  return true;
}

}  // namespace baton

#endif  // BATON_FAULT_POINTS
