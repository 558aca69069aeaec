// Which worker of a pool takes the next request.
#ifndef BATON_SERVER_ROUTER_ROUTING_POLICY_H_
#define BATON_SERVER_ROUTER_ROUTING_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "base/prefix_key.h"
#include "server/router/prefix_table.h"

namespace baton {

// Requests at a worker: what it reported, carried forward by what this router
// has sent there and seen end since, and no less than this router has there: a
// report that comes now may be older than they are. So neither a new worker nor
// one whose report is old draws everything at once.
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

// Those who may take a request: entry i of each is of candidate i. In a fixed
// order, as far as they are the same from one choice to the next.
struct RoutingCandidates {
  std::span<const int64_t> loads;  // WorkerLoad::Estimate().
  std::span<const RankName> names;
  // Of the request's prompt: PrefixKeysOf. Empty: whoever has its prefix is not
  // asked for, and it leaves nothing behind for others.
  std::span<const PrefixKey> prefix;
};

// Pure but for its own state. Thread-compatible.
class RoutingPolicy {
 public:
  virtual ~RoutingPolicy() = default;
  // Index of the one to take, which will. REQUIRES: not empty.
  virtual size_t Pick(const RoutingCandidates& candidates) = 0;
  // Of RankName: what its process knew is lost.
  virtual void Forget(uint32_t /*worker*/) {}
};

// Each in its turn, whatever its load.
class RoundRobinPolicy final : public RoutingPolicy {
 public:
  size_t Pick(const RoutingCandidates& candidates) override;

 private:
  size_t turn_ = 0;
};

// The smallest load; equals take turns.
class LeastLoadedPolicy final : public RoutingPolicy {
 public:
  size_t Pick(const RoutingCandidates& candidates) override;

 private:
  size_t turn_ = 0;
};

// The smaller load of two that are drawn. Where many routers see the same
// stale loads, they don't all run to the same worker.
class PowerOfTwoPolicy final : public RoutingPolicy {
 public:
  explicit PowerOfTwoPolicy(uint64_t seed) : random_(seed) {}
  size_t Pick(const RoutingCandidates& candidates) override;

 private:
  std::mt19937_64 random_;
};

// Who lately computed the longest part of the prompt's prefix, unless the guard
// says that its load is too far above the least; else the least loaded, of
// equals who has more of the prefix.
//
// To follow a prefix saves a share s of the prompt's computation: what this
// rank has of it more than the least loaded one. It costs to wait for the
// requests that stand there in front, each of which takes a share 1 - s if it
// matches as well as this one: so s / (1 - s) of them would be no loss. The
// guard lets half as many stand there, because not all match, and no more than
// the margin, which bounds what a wrong guess costs. A short prefix thus
// decides between equals alone, and one that everybody sends spreads over all
// workers.
class PrefixAffinityPolicy final : public RoutingPolicy {
 public:
  struct Options {
    // The margin: so many requests above the least load, or so much of it above
    // it, whichever is more.
    uint32_t extra_requests = 1;
    double extra_load_ratio = 0.5;
    // Pairs of prefix and rank that are remembered; about 100 bytes each.
    size_t table_capacity = 128 * 1024;
  };

  explicit PrefixAffinityPolicy(const Options& options);
  size_t Pick(const RoutingCandidates& candidates) override;
  void Forget(uint32_t worker) override { table_.Forget(worker); }

 private:
  struct Choice {
    size_t index = 0;
    int64_t load = 0;
    size_t num_known = 0;  // Blocks of the prefix.
  };

  std::vector<Choice> Choices(const RoutingCandidates& candidates) const;
  const Choice& FollowPrefix(const std::vector<Choice>& choices,
                             const Choice& least, size_t num_blocks) const;
  // REQUIRES: it has more of the prefix than `least`.
  bool IsTooBusy(const Choice& choice, const Choice& least,
                 size_t num_blocks) const;

  const Options options_;
  PrefixTable table_;
  size_t turn_ = 0;
};

struct RoutingPolicyOptions {
  uint64_t seed = 0;  // power_of_two
  PrefixAffinityPolicy::Options affinity = {};
};

// "least_loaded", "round_robin", "power_of_two" or "prefix_affinity"; null for
// another name.
std::unique_ptr<RoutingPolicy> MakeRoutingPolicy(
    std::string_view name, const RoutingPolicyOptions& options = {});

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_ROUTING_POLICY_H_
