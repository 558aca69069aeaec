#include "server/group_loop.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "base/logging.h"

namespace baton {
namespace {

// Work and the end wake the threads; this bounds what a lost wake-up costs.
constexpr absl::Duration kIdleWait = absl::Seconds(1);
// The engines look for the end of a step by the clock.
constexpr uint64_t kTimerSlackNanoseconds = 1000;

}  // namespace

GroupLoop::GroupLoop(const GroupStepperOptions& options,
                     std::vector<LLMEngine*> engines, KvTransferAgent* agent,
                     const Clock* clock, std::function<absl::Status()> status)
    : engines_(std::move(engines)),
      status_(std::move(status)),
      stepper_(options, engines_, clock),
      transfer_(agent),
      engines_thread_([this] { TurnEngines(); }) {}

GroupLoop::~GroupLoop() {
  stop_engines_.store(true);
  messages_.Wake();
  engines_thread_.join();
}

void GroupLoop::TurnEngines() {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNanoseconds);
  while (!stop_engines_.load() || !idle()) {
    messages_.Drain(&received_);
    for (const VoteMessage& message : received_) stepper_.OnMessage(message);
    if (const absl::Status status = status_(); !status.ok()) {
      LOG(FATAL) << "the group has ended: " << status.message();
    }
    if (!stepper_.Turn() && received_.empty()) Wait();
  }
}

bool GroupLoop::idle() const {
  return std::all_of(engines_.begin(), engines_.end(),
                     [](const LLMEngine* engine) { return engine->idle(); });
}

void GroupLoop::Wait() {
  absl::Duration wait = kIdleWait;
  for (const LLMEngine* engine : engines_) wait = engine->TimeToNextTurn(wait);
  messages_.WaitForItem(wait);
}

}  // namespace baton
