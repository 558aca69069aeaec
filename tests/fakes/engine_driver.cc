#include "tests/fakes/engine_driver.h"

#include <algorithm>

namespace baton {

void EngineDriver::Add(LLMEngine* engine, DeviceStream* stream) {
  ranks_.push_back({engine, stream});
}

void EngineDriver::Add(KvTransferAgent* agent) { agents_.push_back(agent); }

bool EngineDriver::Turn() {
  bool busy = false;
  for (const Rank& rank : ranks_) {
    busy |= rank.engine->Advance();
    rank.engine->CheckInvariants();
    if (after_turn_) after_turn_();
    busy |= rank.stream->Poll();
  }
  for (KvTransferAgent* agent : agents_) busy |= agent->Poll();
  if (!busy) clock_->Advance(tick_);
  return busy;
}

bool EngineDriver::RunUntil(const std::function<bool()>& done, int max_turns) {
  for (int turn = 0; turn < max_turns; ++turn) {
    if (done()) return true;
    Turn();
  }
  return done();
}

bool EngineDriver::RunUntilIdle(int max_turns) {
  return RunUntil(
      [this] {
        return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
          return rank.engine->idle();
        });
      },
      max_turns);
}

}  // namespace baton
