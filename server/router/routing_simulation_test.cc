// Policies against each other, over modelled workers: each computes one prompt
// after the other, in a time that is that of the blocks that its cache lacks.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/prefix_key.h"
#include "gtest/gtest.h"
#include "server/router/prefix_table.h"
#include "server/router/routing_policy.h"

namespace baton {
namespace {

constexpr int kNumWorkers = 4;
constexpr size_t kPromptBlocks = 32;
// Of each worker: twelve prompts that have nothing in common.
constexpr size_t kCacheBlocks = 12 * kPromptBlocks;
// In the time of a block: what a prompt costs beside its blocks.
constexpr double kFixedCost = 2;
constexpr double kPromptCost = kFixedCost + static_cast<double>(kPromptBlocks);

// What a worker's cache holds, the newest first.
class ModelCache {
 public:
  // Blocks of the prompt that are there; then all of it is.
  size_t Use(const std::vector<PrefixKey>& keys) {
    size_t num_cached = 0;
    while (num_cached < keys.size() && blocks_.contains(keys[num_cached])) {
      ++num_cached;
    }
    for (size_t i = keys.size(); i > 0; --i) Touch(keys[i - 1]);
    while (blocks_.size() > kCacheBlocks) {
      blocks_.erase(by_age_.back());
      by_age_.pop_back();
    }
    return num_cached;
  }

 private:
  void Touch(const PrefixKey& key) {
    const auto [block, is_new] = blocks_.try_emplace(key);
    if (!is_new) by_age_.erase(block->second);
    by_age_.push_front(key);
    block->second = by_age_.begin();
  }

  std::list<PrefixKey> by_age_;
  absl::flat_hash_map<PrefixKey, std::list<PrefixKey>::iterator> blocks_;
};

struct ModelWorker {
  ModelCache cache;
  double free_at = 0;
  std::deque<double> ends;  // Of what it has not done yet.
  WorkerLoad load;
};

struct ModelRequest {
  double arrival = 0;
  std::vector<PrefixKey> keys;
};

struct Latencies {
  double mean = 0;
  double p99 = 0;
};

// From arrival to the end of computing, over all requests.
Latencies Simulate(RoutingPolicy* policy,
                   const std::vector<ModelRequest>& requests) {
  std::vector<ModelWorker> workers(kNumWorkers);
  std::vector<RankName> names;
  for (uint32_t i = 0; i < kNumWorkers; ++i) names.push_back({i, 0, 1});
  std::vector<double> latencies;
  for (const ModelRequest& request : requests) {
    std::vector<int64_t> loads;
    for (ModelWorker& worker : workers) {
      while (!worker.ends.empty() && worker.ends.front() <= request.arrival) {
        worker.ends.pop_front();
        worker.load.RequestEnded();
      }
      loads.push_back(worker.load.Estimate());
    }
    ModelWorker& worker = workers[policy->Pick(
        {.loads = loads, .names = names, .prefix = request.keys})];
    const size_t num_new = request.keys.size() - worker.cache.Use(request.keys);
    worker.free_at = std::max(worker.free_at, request.arrival) + kFixedCost +
                     static_cast<double>(num_new);
    worker.ends.push_back(worker.free_at);
    worker.load.RequestSent();
    latencies.push_back(worker.free_at - request.arrival);
  }
  std::sort(latencies.begin(), latencies.end());
  const double sum = std::accumulate(latencies.begin(), latencies.end(), 0.0);
  return {.mean = sum / static_cast<double>(latencies.size()),
          .p99 = latencies[latencies.size() * 99 / 100]};
}

// What clients send. The first `num_shared_blocks` of a prompt are those of its
// group, the rest is its own; prompts of a conversation begin with the one
// before and `turn_blocks` more.
struct Workload {
  std::string name;
  size_t num_shared_blocks = 0;
  int num_groups = 1;
  double hot_share = 0;  // Of the requests that are of the first group.
  size_t turn_blocks = 0;
};

class Client {
 public:
  Client(const Workload& workload, uint64_t seed)
      : workload_(workload), random_(seed) {}

  std::vector<PrefixKey> Next() {
    return workload_.turn_blocks > 0 ? NextTurn() : NextPrompt();
  }
  std::mt19937_64& random() { return random_; }

 private:
  static constexpr size_t kNumConversations = 24;

  uint64_t NextGroup() {
    const bool is_hot =
        std::uniform_real_distribution<>()(random_) < workload_.hot_share;
    return is_hot ? 0 : random_() % workload_.num_groups;
  }
  std::vector<PrefixKey> NextPrompt() {
    std::vector<PrefixKey> keys;
    const uint64_t group = NextGroup();
    for (uint64_t i = 0; i < kPromptBlocks; ++i) {
      keys.push_back(i < workload_.num_shared_blocks
                         ? PrefixKey{.high = group, .low = i}
                         : PrefixKey{.high = ~group, .low = ++counter_});
    }
    return keys;
  }
  std::vector<PrefixKey> NextTurn() {
    if (conversations_.size() < kNumConversations)
      conversations_.emplace_back();
    std::vector<PrefixKey>& turn =
        conversations_[random_() % conversations_.size()];
    if (turn.size() >= 2 * kPromptBlocks) turn.clear();
    for (size_t i = 0; i < workload_.turn_blocks; ++i) {
      turn.push_back({.high = 1, .low = ++counter_});
    }
    return turn;
  }

  const Workload workload_;
  std::mt19937_64 random_;
  uint64_t counter_ = 0;
  std::vector<std::vector<PrefixKey>> conversations_;
};

// `busy`: the share of all workers' time that the prompts need where no cache
// helps.
std::vector<ModelRequest> MakeRequests(const Workload& workload, double busy,
                                       uint64_t seed) {
  Client client(workload, seed);
  std::exponential_distribution<> until_next(busy * kNumWorkers / kPromptCost);
  std::vector<ModelRequest> requests;
  double now = 0;
  for (int i = 0; i < 1500; ++i) {
    now += until_next(client.random());
    requests.push_back({.arrival = now, .keys = client.Next()});
  }
  return requests;
}

const std::vector<Workload>& Workloads() {
  static const auto* const workloads = new std::vector<Workload>{
      {.name = "nothing shared"},
      {.name = "a word for all", .num_shared_blocks = 1},
      {.name = "a short text for all", .num_shared_blocks = 4},
      {.name = "half for all", .num_shared_blocks = 16},
      {.name = "most for all", .num_shared_blocks = 28},
      {.name = "tenants", .num_shared_blocks = 16, .num_groups = 40},
      {.name = "big tenants", .num_shared_blocks = 28, .num_groups = 40},
      {.name = "a hot tenant",
       .num_shared_blocks = 24,
       .num_groups = 40,
       .hot_share = 0.6},
      {.name = "conversations", .turn_blocks = 4},
  };
  return *workloads;
}

Latencies MeanOfSeeds(const std::string& policy, const Workload& workload,
                      double busy) {
  constexpr uint64_t kNumSeeds = 2;
  Latencies mean;
  for (uint64_t seed = 1; seed <= kNumSeeds; ++seed) {
    const Latencies one =
        Simulate(MakeRoutingPolicy(policy, {.seed = seed}).get(),
                 MakeRequests(workload, busy, seed));
    mean.mean += one.mean / kNumSeeds;
    mean.p99 += one.p99 / kNumSeeds;
  }
  return mean;
}

// The default policy must be no gamble. Whatever is lost to a wait behind
// another prompt, where a worker without the prefix stood by, is bounded.
TEST(RoutingSimulationTest, AffinityIsNeverWorseThanTheLeastLoad) {
  for (const Workload& workload : Workloads()) {
    for (const double busy : {0.2, 0.7, 1.2}) {
      SCOPED_TRACE(workload.name + " at " + std::to_string(busy));
      const Latencies affinity = MeanOfSeeds("prefix_affinity", workload, busy);
      const Latencies least = MeanOfSeeds("least_loaded", workload, busy);
      EXPECT_LE(affinity.mean, 1.03 * least.mean);
      EXPECT_LE(affinity.p99, least.p99 + kPromptCost / 2);
    }
  }
}

TEST(RoutingSimulationTest, AffinityIsMuchBetterWhereCachesAreTooSmallForAll) {
  for (const Workload& workload : Workloads()) {
    if (workload.turn_blocks == 0 && workload.name != "big tenants") continue;
    SCOPED_TRACE(workload.name);
    const Latencies affinity = MeanOfSeeds("prefix_affinity", workload, 0.7);
    const Latencies least = MeanOfSeeds("least_loaded", workload, 0.7);
    EXPECT_LE(affinity.mean, 0.7 * least.mean);
    EXPECT_LE(affinity.p99, least.p99);
  }
}

}  // namespace
}  // namespace baton
