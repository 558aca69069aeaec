// Which worker of a pool takes the next request.
#ifndef BATON_SERVER_ROUTER_ROUTING_POLICY_H_
#define BATON_SERVER_ROUTER_ROUTING_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace baton {

// Requests at a worker: what it reported, carried forward by what this router
// has sent there and seen end since. So neither a new worker nor one whose
// report is old draws everything at once.
class WorkerLoad {
 public:
  void Report(uint32_t running, uint32_t waiting);
  void RequestSent() { ++in_flight_; }
  // REQUIRES: in_flight() > 0.
  void RequestEnded();
  // Of this router alone.
  int64_t in_flight() const { return in_flight_; }
  int64_t Estimate() const;

 private:
  int64_t reported_ = 0;
  int64_t in_flight_ = 0;
  int64_t in_flight_at_report_ = 0;
};

// Pure but for its own state (a turn counter). Thread-compatible.
class RoutingPolicy {
 public:
  virtual ~RoutingPolicy() = default;
  // Index of the one to take. `loads` are WorkerLoad::Estimate() of the workers
  // that can serve, in a fixed order. REQUIRES: not empty.
  virtual size_t Pick(std::span<const int64_t> loads) = 0;
};

// Each in its turn, whatever its load.
class RoundRobinPolicy final : public RoutingPolicy {
 public:
  size_t Pick(std::span<const int64_t> loads) override;

 private:
  size_t turn_ = 0;
};

// The smallest load; equals take turns.
class LeastLoadedPolicy final : public RoutingPolicy {
 public:
  size_t Pick(std::span<const int64_t> loads) override;

 private:
  size_t turn_ = 0;
};

// "least_loaded" or "round_robin"; null for another name.
std::unique_ptr<RoutingPolicy> MakeRoutingPolicy(std::string_view name);

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_ROUTING_POLICY_H_
