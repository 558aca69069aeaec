// A rank of a simulated group: the real engine over one of two devices.
#ifndef BATON_TESTS_SIMULATION_GROUP_SIMULATED_RANK_H_
#define BATON_TESTS_SIMULATION_GROUP_SIMULATED_RANK_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "comm/expert_dispatch.h"
#include "comm/step_ids.h"
#include "comm/step_vote.h"
#include "engine/llm_engine.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/heap_kv_pool.h"
#include "tests/fakes/simulated_clock.h"
#include "tests/simulation/group/light_step_executor.h"

namespace baton {

struct SimulatedRankOptions {
  EngineOptions engine = {};
  uint32_t num_blocks = 16;
  // A model that hashes its KV and a real executor; else a device that knows
  // the tokens, which is fifty times as fast.
  bool hashes_kv = false;
};

// Of a version of the placement: one layer, without experts.
std::span<const ExpertSlots> TablesOf(uint64_t version);

// One thread. Its device runs a step when it is told to.
class SimulatedRank {
 public:
  SimulatedRank(const SimulatedRankOptions& options, SimulatedClock* clock);
  // Whatever it was doing: its requests end.
  ~SimulatedRank();

  LLMEngine& engine() { return fake_ ? fake_->engine() : *engine_; }
  // The group is about to launch this step here.
  void OnLaunch(const StepDecision& decision);
  // Of the group's, launched and not yet run.
  const std::deque<StepId>& in_flight() const { return in_flight_; }
  void RunOldest();
  // The group is gone: every request ends, as do the steps in flight.
  void Abandon();

 private:
  // Null with hashes_kv.
  std::unique_ptr<HeapKvPool> pool_;
  std::unique_ptr<LightStepExecutor> light_;
  std::unique_ptr<LLMEngine> engine_;
  // Null without.
  std::unique_ptr<FakeRank> fake_;
  std::deque<StepId> in_flight_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_GROUP_SIMULATED_RANK_H_
