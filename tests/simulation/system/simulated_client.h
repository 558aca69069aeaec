// One call of a client of the simulated system: it reads, perhaps slowly, or
// goes away, and dies of anything that it must not be told.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_CLIENT_H_
#define BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/baton/v1/inference.pb.h"
#include "tests/simulation/system/event_loop.h"
#include "tests/simulation/system/simulated_call.h"
#include "tests/simulation/system/simulated_router.h"
#include "tests/simulation/system/system_request.h"

namespace baton {

// One thread. Outlives its call.
class SimulatedClient final {
 public:
  SimulatedClient(uint64_t number, ProcessId process, SystemRequest request)
      : number_(number), process_(process), request_(std::move(request)) {}

  void Start(EventLoop* loop, CallNetwork* calls, SimulatedRouter* router);

  bool has_ended() const { return status_.has_value(); }
  // REQUIRES: has_ended().
  const absl::Status& status() const { return *status_; }
  uint64_t num_tokens() const;
  const SystemRequest& request() const { return request_; }
  bool has_cancelled() const { return has_cancelled_; }
  absl::Time deadline() const { return deadline_; }

 private:
  struct Answer {
    std::vector<uint32_t> tokens;
    std::string text;
    bool finished = false;
  };

  void OnMessage(const v1::GenerateResponse& message);
  void OnPrompt(const v1::PromptLogprobs& prompt);
  void OnChunk(const v1::GenerateChunk& chunk);
  void OnFinished(const v1::GenerateFinished& finished);
  void OnEnd(const absl::Status& status);
  void ReadSlowly();

  const uint64_t number_;
  const ProcessId process_;
  const SystemRequest request_;
  EventLoop* loop_ = nullptr;
  std::shared_ptr<SimulatedCall> call_;  // See SimulatedCall.
  absl::Time deadline_ = absl::InfiniteFuture();
  bool has_cancelled_ = false;
  bool reads_ = true;
  std::vector<Answer> answers_;
  size_t num_prompt_logprobs_ = 0;
  std::optional<absl::Status> status_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_CLIENT_H_
