// The threads of one rank.
#ifndef BATON_SERVER_ENGINE_LOOP_H_
#define BATON_SERVER_ENGINE_LOOP_H_

#include <atomic>
#include <thread>

#include "comm/kv_transfer_agent.h"
#include "engine/device_stream.h"
#include "engine/llm_engine.h"
#include "server/transfer_thread.h"

namespace baton {

// One thread turns the engine, and its stream where no DeviceThread does:
// at depth 1 they take turns anyway. Another turns the transfer agent. Both
// block when there is nothing to do.
class EngineLoop {
 public:
  // Starts the threads. Borrows all, which must outlive it. `agent` may be
  // null; `stream` is null where another thread polls it.
  EngineLoop(LLMEngine* engine, DeviceStream* stream, KvTransferAgent* agent);
  // Goes on until the engine is idle, then stops. REQUIRES: every request has
  // ended, or is about to.
  ~EngineLoop();
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

 private:
  void TurnEngine();

  LLMEngine* const engine_;
  DeviceStream* const stream_;
  std::atomic<bool> stop_engine_{false};
  TransferThread transfer_;  // Stops behind the engine.
  std::thread engine_thread_;
};

}  // namespace baton

#endif  // BATON_SERVER_ENGINE_LOOP_H_
