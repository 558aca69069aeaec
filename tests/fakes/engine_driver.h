// Turns the loops of engines, streams and transfer agents until a test is done.
#ifndef BATON_TESTS_FAKES_ENGINE_DRIVER_H_
#define BATON_TESTS_FAKES_ENGINE_DRIVER_H_

#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "comm/kv_transfer_agent.h"
#include "engine/device_stream.h"
#include "engine/llm_engine.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {

// One thread. Borrows all it drives.
class EngineDriver {
 public:
  // The clock moves by `tick` in each round in which nothing else happens.
  explicit EngineDriver(SimulatedClock* clock,
                        absl::Duration tick = absl::Milliseconds(1))
      : clock_(clock), tick_(tick) {}

  void Add(LLMEngine* engine, DeviceStream* stream);
  void Add(KvTransferAgent* agent);
  // Called after each turn of an engine, with its invariants checked.
  void set_after_turn(std::function<void()> after_turn) {
    after_turn_ = std::move(after_turn);
  }

  // One turn of each; true if anything happened.
  bool Turn();
  // Turns until `done`; false if it isn't after `max_turns`.
  bool RunUntil(const std::function<bool()>& done, int max_turns = 100000);
  // Turns until every engine is idle.
  bool RunUntilIdle(int max_turns = 100000);

 private:
  struct Rank {
    LLMEngine* engine = nullptr;
    DeviceStream* stream = nullptr;
  };

  SimulatedClock* const clock_;
  const absl::Duration tick_;
  std::vector<Rank> ranks_;
  std::vector<KvTransferAgent*> agents_;
  std::function<void()> after_turn_;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_ENGINE_DRIVER_H_
