#include <algorithm>
#include <random>

#include "engine/cache_spec.h"
#include "tests/simulation/simulated_world.h"

namespace baton {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  uint32_t Between(uint32_t low, uint32_t high) {
    return low + static_cast<uint32_t>(random_() % (high - low + 1));
  }
  bool OneIn(uint32_t n) { return random_() % n == 0; }

 private:
  std::mt19937_64 random_;
};

EngineOptions RandomEngine(Dice& dice) {
  EngineOptions engine;
  engine.max_running_requests = dice.Between(1, 8);
  engine.max_waiting_requests = dice.Between(1, 12);
  engine.max_chunk_tokens =
      dice.OneIn(4) ? dice.Between(1, 8) : dice.Between(8, 130);
  engine.max_batched_tokens = engine.max_chunk_tokens + dice.Between(0, 90);
  engine.decode_steps_per_prefill = dice.Between(1, 3);
  engine.prefix_cache = !dice.OneIn(5);
  // With a curve not all drafts are verified.
  if (dice.OneIn(2)) {
    engine.step_curve = {
        {.rows = 1, .time = absl::Microseconds(dice.Between(1, 100))},
        {.rows = 8, .time = absl::Microseconds(dice.Between(100, 200))},
        {.rows = 40, .time = absl::Microseconds(dice.Between(200, 2000))}};
  }
  return engine;
}

FakeModelRunner::Options RandomModel(Dice& dice) {
  FakeModelRunner::Options model;
  model.vocab_size = dice.Between(8, 40);
  model.max_context_tokens = dice.Between(40, 256);
  // One word: the hash of a row is no longer than its content.
  model.bytes_per_token = sizeof(uint64_t);
  if (dice.OneIn(4)) model.poison_token = model.vocab_size - 1;
  model.prompt_has_own_form = dice.OneIn(4);
  model.right_drafts = dice.OneIn(4) ? 256 : dice.Between(0, 256);
  return model;
}

void SetRequests(Dice& dice, WorldOptions* world) {
  RequestSource::Options& requests = world->requests;
  requests.seed = world->seed;
  requests.model = world->ranks.front().model;
  uint32_t& context = requests.model.max_context_tokens;
  for (const FakeRank::Options& rank : world->ranks) {
    context = std::min(context, rank.num_blocks * CacheSpec::kBlockTokens);
  }
  for (FakeRank::Options& rank : world->ranks) {
    rank.model.max_context_tokens = context;
  }
  requests.max_prompt_tokens = std::min(dice.OneIn(3) ? 20u : 200u,
                                        requests.model.max_context_tokens - 1);
  requests.max_tokens = dice.Between(2, 60);
  requests.max_samples = 6;
  for (const FakeRank::Options& rank : world->ranks) {
    requests.max_samples =
        std::min(requests.max_samples, rank.engine.max_waiting_requests);
  }
}

// Many long answers behind short prompts, so that the pool runs out.
void MakeTight(Dice& dice, WorldOptions* world) {
  for (FakeRank::Options& rank : world->ranks) {
    rank.num_blocks = dice.Between(4, 8);
    rank.model.max_context_tokens = 8 * CacheSpec::kBlockTokens;
    rank.model.poison_token.reset();
    rank.engine.max_running_requests = dice.Between(3, 8);
    rank.engine.max_chunk_tokens += 40;
    rank.engine.max_batched_tokens += 40;
  }
  SetRequests(dice, world);
  world->requests.max_prompt_tokens = dice.Between(5, 130);
  world->requests.max_tokens = dice.Between(100, 300);
  world->requests.fills_pool = true;
  world->mischief_weight = dice.Between(0, 1);
}

}  // namespace

WorldOptions RandomWorld(uint64_t seed) {
  Dice dice(seed);
  WorldOptions world;
  world.seed = seed;
  const FakeModelRunner::Options model = RandomModel(dice);
  // A drafter changes the cache, so all ranks have one or none.
  const uint32_t drafts = dice.OneIn(3) ? 0 : dice.Between(1, kMaxDraftTokens);
  const uint32_t num_ranks = dice.OneIn(4) ? 2 : 1;
  world.unit = absl::Microseconds(dice.OneIn(3) ? 1 : 1000);
  for (uint32_t i = 0; i < num_ranks; ++i) {
    FakeRank::Options rank = {.engine = RandomEngine(dice), .model = model};
    rank.engine.num_draft_tokens = drafts;
    rank.num_blocks = dice.Between(4, dice.OneIn(2) ? 40 : 9);
    rank.transfer = {.fingerprint = {},
                     .lease = 1000 * world.unit,
                     .import_timeout = 1000 * world.unit,
                     .refresh_interval = 50 * world.unit,
                     .drain_timeout = 100 * world.unit,
                     .token_seed = seed * 2 + i + 1};
    world.max_live += rank.engine.max_running_requests +
                      dice.Between(0, rank.engine.max_waiting_requests);
    world.ranks.push_back(rank);
  }
  world.turn_weight = dice.Between(1, 8);
  world.poll_weight = dice.Between(1, 8);
  world.tick_weight = dice.Between(1, 4);
  world.arrival_weight = dice.Between(1, 3);
  world.mischief_weight = dice.Between(0, 2);
  world.loses_messages = dice.OneIn(2);
  SetRequests(dice, &world);
  if (dice.OneIn(3)) MakeTight(dice, &world);
  return world;
}

}  // namespace baton
