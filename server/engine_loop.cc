#include "server/engine_loop.h"

#include <sys/prctl.h>

#include <cstdint>

#include "base/logging.h"

namespace baton {
namespace {

// Work and the end wake the threads; this bounds what a lost wake-up costs.
constexpr absl::Duration kIdleWait = absl::Seconds(1);
// The engine looks for the end of a step by the clock.
constexpr uint64_t kTimerSlackNanoseconds = 1000;
// Every request has ended by then: more is a bug, and better seen than waited
// for.
constexpr int kMaxIdleWaitsAtTheEnd = 60;

}  // namespace

EngineLoop::EngineLoop(LLMEngine* engine, DeviceStream* stream,
                       KvTransferAgent* agent)
    : engine_(engine),
      stream_(stream),
      transfer_(agent),
      engine_thread_([this] { TurnEngine(); }) {}

EngineLoop::~EngineLoop() {
  stop_engine_.store(true);
  engine_->Wake();
  engine_thread_.join();
}

void EngineLoop::TurnEngine() {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNanoseconds);
  int waits_at_the_end = 0;
  while (!stop_engine_.load() || !engine_->idle()) {
    const bool advanced = engine_->Advance();
    const bool polled = stream_ != nullptr && stream_->Poll();
    if (advanced || polled) continue;
    if (stop_engine_.load()) {
      if (engine_->idle()) return;
      CHECK_LT(++waits_at_the_end, kMaxIdleWaitsAtTheEnd) << "never idle";
    }
    engine_->WaitForWork(kIdleWait);
  }
}

}  // namespace baton
