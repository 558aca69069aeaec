#include "tests/simulation/group/group_simulation.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "tests/simulation/command_on_death.h"

namespace baton {
namespace {

SimulatedRankOptions RandomRank(bool hashes_kv, std::mt19937_64* random) {
  const auto draw = [random](uint32_t low, uint32_t high) {
    return static_cast<uint32_t>(low + (*random)() % (high - low + 1));
  };
  SimulatedRankOptions rank;
  rank.hashes_kv = hashes_kv;
  rank.engine.max_running_requests = draw(1, 6);
  rank.engine.max_waiting_requests = draw(4, 32);
  rank.engine.max_batched_tokens = draw(16, 256);
  rank.engine.max_chunk_tokens = draw(8, rank.engine.max_batched_tokens);
  rank.engine.pipeline_depth = draw(1, kMaxPipelineDepth);
  rank.engine.num_draft_tokens = draw(0, 1) == 0 ? 0 : draw(1, 3);
  // A request has 300 tokens at most, which is 5 blocks.
  rank.num_blocks = draw(6, 20);
  return rank;
}

}  // namespace

GroupWorldOptions RandomGroup(const GroupSimulationOptions& options) {
  std::mt19937_64 random(options.seed);
  uint32_t num_ranks = options.num_ranks;
  if (num_ranks == 0) num_ranks = static_cast<uint32_t>(2 + random() % 15);
  // Of several processes, each with as many ranks as the others.
  auto num_processes = static_cast<uint32_t>(2 + random() % (num_ranks - 1));
  if (options.num_ranks > 16 || random() % 2 == 0) num_processes = num_ranks;
  while (num_ranks % num_processes != 0) ++num_processes;

  GroupWorldOptions world;
  world.seed = random();
  world.num_processes = num_processes;
  world.ranks_per_process = num_ranks / num_processes;
  world.rank = RandomRank(options.hashes_kv, &random);
  world.all_interval = static_cast<uint32_t>(1 + random() % 70);
  world.any_interval = static_cast<uint32_t>(1 + random() % 100);
  world.max_prefill_wait = absl::Microseconds((random() % 4 == 0 ? 40 : 2000) *
                                              uint64_t{num_processes});
  world.requests.hashes_kv = options.hashes_kv;
  if (options.hashes_kv) world.requests.count = 12;
  world.max_clients = static_cast<uint32_t>(1 + random() % (8 * num_ranks));
  if (options.faults) world.fault_weight = 400 / num_processes + 1;
  world.wants_by_estimate = random() % 4 == 0;
  return world;
}

GroupResult SimulateGroup(const GroupSimulationOptions& options) {
  PrintOnDeath(absl::StrCat(
      "failed: bazel run //tests/simulation/group:simulate -- --seed=",
      options.seed, " --rank_steps=", options.rank_steps,
      " --ranks=", options.num_ranks, " --hashes_kv=", options.hashes_kv,
      " --faults=", options.faults));
  GroupWorld world(RandomGroup(options));
  world.Run(options.rank_steps);
  return world.result();
}

}  // namespace baton
