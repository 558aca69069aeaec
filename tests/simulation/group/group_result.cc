#include "tests/simulation/group/group_result.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

struct NamedCounter {
  const char* name;
  uint64_t GroupResult::*counter;
};

constexpr std::array<NamedCounter, 17> kCounters = {{
    {"rank_steps", &GroupResult::rank_steps},
    {"steps", &GroupResult::steps},
    {"prefill_steps", &GroupResult::prefill_steps},
    {"empty_rank_steps", &GroupResult::empty_rank_steps},
    {"fallbacks", &GroupResult::fallbacks},
    {"sleeps", &GroupResult::sleeps},
    {"epochs", &GroupResult::epochs},
    {"kills", &GroupResult::kills},
    {"stops", &GroupResult::stops},
    {"fences", &GroupResult::fences},
    {"late_messages", &GroupResult::late_messages},
    {"placement_switches", &GroupResult::placement_switches},
    {"requests", &GroupResult::requests},
    {"handed_back", &GroupResult::handed_back},
    {"aborted", &GroupResult::aborted},
    {"tokens", &GroupResult::tokens},
    {"livelocks", &GroupResult::livelocks},
}};

}  // namespace

GroupResult& GroupResult::operator+=(const GroupResult& other) {
  for (const NamedCounter& named : kCounters) {
    this->*named.counter += other.*named.counter;
  }
  longest_wish = std::max(longest_wish, other.longest_wish);
  return *this;
}

std::string ToString(const GroupResult& result) {
  std::string text;
  for (const NamedCounter& named : kCounters) {
    absl::StrAppend(&text, named.name, " ", result.*named.counter, " ");
  }
  absl::StrAppend(&text, "longest_wish ", result.longest_wish);
  return text;
}

}  // namespace baton
