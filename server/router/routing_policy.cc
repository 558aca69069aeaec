#include "server/router/routing_policy.h"

#include <algorithm>

#include "base/logging.h"

namespace baton {

void WorkerLoad::Report(uint32_t running, uint32_t waiting) {
  reported_ = int64_t{running} + waiting;
  in_flight_at_report_ = in_flight_;
}

void WorkerLoad::RequestEnded() {
  CHECK_GT(in_flight_, 0);
  --in_flight_;
}

int64_t WorkerLoad::Estimate() const {
  return std::max(reported_ + in_flight_ - in_flight_at_report_, in_flight_);
}

size_t RoundRobinPolicy::Pick(const RoutingCandidates& candidates) {
  CHECK(!candidates.loads.empty());
  return turn_++ % candidates.loads.size();
}

size_t LeastLoadedPolicy::Pick(const RoutingCandidates& candidates) {
  const std::span<const int64_t> loads = candidates.loads;
  CHECK(!loads.empty());
  const int64_t least = *std::min_element(loads.begin(), loads.end());
  // The first of the least, starting where the last pick left off.
  size_t index = turn_ % loads.size();
  while (loads[index] != least) index = (index + 1) % loads.size();
  turn_ = index + 1;
  return index;
}

size_t PowerOfTwoPolicy::Pick(const RoutingCandidates& candidates) {
  const std::span<const int64_t> loads = candidates.loads;
  CHECK(!loads.empty());
  if (loads.size() == 1) return 0;
  const size_t one = random_() % loads.size();
  const size_t other =
      (one + 1 + random_() % (loads.size() - 1)) % loads.size();
  return loads[other] < loads[one] ? other : one;
}

PrefixAffinityPolicy::PrefixAffinityPolicy(const Options& options)
    : options_(options), table_(options.table_capacity) {}

size_t PrefixAffinityPolicy::Pick(const RoutingCandidates& candidates) {
  CHECK(!candidates.loads.empty());
  CHECK_EQ(candidates.loads.size(), candidates.names.size());
  const std::vector<Choice> choices = Choices(candidates);
  const Choice& least =
      *std::min_element(choices.begin(), choices.end(),
                        [](const Choice& one, const Choice& other) {
                          if (one.load != other.load) {
                            return one.load < other.load;
                          }
                          return one.num_known > other.num_known;
                        });
  const size_t index =
      FollowPrefix(choices, least, candidates.prefix.size()).index;
  table_.Put(candidates.prefix, candidates.names[index]);
  turn_ = index + 1;
  return index;
}

// Beginning where the last pick left off, so that equals take turns.
std::vector<PrefixAffinityPolicy::Choice> PrefixAffinityPolicy::Choices(
    const RoutingCandidates& candidates) const {
  const size_t count = candidates.loads.size();
  std::vector<Choice> choices;
  choices.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t index = (turn_ + i) % count;
    choices.push_back({.index = index,
                       .load = candidates.loads[index],
                       .num_known = table_.CountKnown(
                           candidates.prefix, candidates.names[index])});
  }
  return choices;
}

const PrefixAffinityPolicy::Choice& PrefixAffinityPolicy::FollowPrefix(
    const std::vector<Choice>& choices, const Choice& least,
    size_t num_blocks) const {
  const Choice* best = &least;
  for (const Choice& choice : choices) {
    const bool is_better = choice.num_known != best->num_known
                               ? choice.num_known > best->num_known
                               : choice.load < best->load;
    if (is_better && !IsTooBusy(choice, least, num_blocks)) best = &choice;
  }
  return *best;
}

bool PrefixAffinityPolicy::IsTooBusy(const Choice& choice, const Choice& least,
                                     size_t num_blocks) const {
  const int64_t excess = choice.load - least.load;
  const double margin = std::max<double>(
      options_.extra_requests,
      options_.extra_load_ratio * static_cast<double>(least.load));
  if (static_cast<double>(excess) > margin) return true;
  const auto num_saved =
      static_cast<int64_t>(choice.num_known - least.num_known);
  return 2 * excess * (static_cast<int64_t>(num_blocks) - num_saved) >
         num_saved;
}

std::unique_ptr<RoutingPolicy> MakeRoutingPolicy(
    std::string_view name, const RoutingPolicyOptions& options) {
  if (name == "least_loaded") return std::make_unique<LeastLoadedPolicy>();
  if (name == "round_robin") return std::make_unique<RoundRobinPolicy>();
  if (name == "power_of_two") {
    return std::make_unique<PowerOfTwoPolicy>(options.seed);
  }
  if (name == "prefix_affinity") {
    return std::make_unique<PrefixAffinityPolicy>(options.affinity);
  }
  return nullptr;
}

}  // namespace baton
