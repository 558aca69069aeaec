#include "tests/simulation/simulation.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "engine/cache_spec.h"
#include "engine/engine_options.h"
#include "tests/simulation/command_on_death.h"
#include "tests/simulation/request_source.h"
#include "tests/simulation/simulated_world.h"

namespace baton {
namespace {

using Answers = std::map<uint64_t, SimulatedAnswer>;

using Counter = uint64_t SimulationResult::*;
struct NamedCounter {
  const char* name;
  Counter counter;
};

constexpr std::array<NamedCounter, 24> kCounters = {{
    {"steps", &SimulationResult::steps},
    {"rows", &SimulationResult::rows},
    {"wasted_rows", &SimulationResult::wasted_rows},
    {"tokens", &SimulationResult::tokens},
    {"requests", &SimulationResult::requests},
    {"shared_prompts", &SimulationResult::shared_prompts},
    {"shared_imports", &SimulationResult::shared_imports},
    {"found_prefixes", &SimulationResult::found_prefixes},
    {"found_imports", &SimulationResult::found_imports},
    {"evicted_blocks", &SimulationResult::evicted_blocks},
    {"stopped", &SimulationResult::stopped},
    {"ended_by_length", &SimulationResult::ended_by_length},
    {"cancelled", &SimulationResult::cancelled},
    {"late", &SimulationResult::late},
    {"unsampleable", &SimulationResult::unsampleable},
    {"transfers_failed", &SimulationResult::transfers_failed},
    {"imported", &SimulationResult::imported},
    {"refused", &SimulationResult::refused},
    {"twins", &SimulationResult::twins},
    {"preempted_by_scheduler", &SimulationResult::preempted_by_scheduler},
    {"preempted_by_hand", &SimulationResult::preempted_by_hand},
    {"drafts_verified", &SimulationResult::drafts_verified},
    {"drafts_accepted", &SimulationResult::drafts_accepted},
    {"compared", &SimulationResult::compared},
}};

// How many requests both have; what both got must be the same.
uint64_t CompareAnswers(const Answers& a, const Answers& b) {
  uint64_t compared = 0;
  for (const auto& [index, one] : a) {
    const auto found = b.find(index);
    if (found == b.end()) continue;
    const SimulatedAnswer& other = found->second;
    const size_t size = std::min(one.tokens.size(), other.tokens.size());
    CHECK(std::equal(one.tokens.begin(), one.tokens.begin() + size,
                     other.tokens.begin()))
        << "depths differ in request " << index;
    CHECK(std::equal(one.logprobs.begin(), one.logprobs.begin() + size,
                     other.logprobs.begin()));
    if (one.complete && other.complete) {
      CHECK_EQ(one.tokens.size(), other.tokens.size());
    }
    ++compared;
  }
  return compared;
}

std::string CommandOf(const SimulationOptions& options) {
  return absl::StrCat(
      "failed: bazel run //tests/simulation:simulate -- --seed=", options.seed,
      " --steps=", options.steps, " --depth=", options.depth);
}

}  // namespace

SimulationResult& SimulationResult::operator+=(const SimulationResult& other) {
  for (const NamedCounter& named : kCounters) {
    this->*named.counter += other.*named.counter;
  }
  longest_wait = std::max(longest_wait, other.longest_wait);
  return *this;
}

std::string ToString(const SimulationResult& result) {
  std::string text;
  for (const NamedCounter& named : kCounters) {
    absl::StrAppend(&text, named.name, " ", result.*named.counter, " ");
  }
  absl::StrAppend(&text, "longest_wait ", result.longest_wait);
  return text;
}

SimulationResult Simulate(const SimulationOptions& options) {
  PrintOnDeath(CommandOf(options));
  WorldOptions world_options = RandomWorld(options.seed);
  world_options.corrupts_kv = options.corrupt_kv;
  RequestSource requests(world_options.requests);
  std::vector<uint32_t> depths = {1, 2, 3};
  if (options.depth > 0) depths = {options.depth};
  SimulationResult result;
  std::vector<Answers> answers;
  for (size_t i = 0; i < depths.size(); ++i) {
    SimulatedWorld world(world_options, depths[i], &requests);
    world.Run(options.steps);
    result += world.result();
    answers.push_back(world.answers());
    if (i > 0) result.compared += CompareAnswers(answers.front(), answers[i]);
  }
  return result;
}

}  // namespace baton
