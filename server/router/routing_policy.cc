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
  return std::max(reported_ + in_flight_ - in_flight_at_report_, int64_t{0});
}

size_t RoundRobinPolicy::Pick(std::span<const int64_t> loads) {
  CHECK(!loads.empty());
  return turn_++ % loads.size();
}

size_t LeastLoadedPolicy::Pick(std::span<const int64_t> loads) {
  CHECK(!loads.empty());
  const int64_t least = *std::min_element(loads.begin(), loads.end());
  // The first of the least, starting where the last pick left off.
  size_t index = turn_ % loads.size();
  while (loads[index] != least) index = (index + 1) % loads.size();
  turn_ = index + 1;
  return index;
}

std::unique_ptr<RoutingPolicy> MakeRoutingPolicy(std::string_view name) {
  if (name == "least_loaded") return std::make_unique<LeastLoadedPolicy>();
  if (name == "round_robin") return std::make_unique<RoundRobinPolicy>();
  return nullptr;
}

}  // namespace baton
