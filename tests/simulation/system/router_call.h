// The owner of one Generation in the simulated router: what GenerationCall is
// to a real one, over simulated calls.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_ROUTER_CALL_H_
#define BATON_TESTS_SIMULATION_SYSTEM_ROUTER_CALL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/prefix_key.h"
#include "proto/baton/v1/inference.pb.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/router/admission.h"
#include "server/router/call_report.h"
#include "server/router/generate_reactor.h"
#include "server/router/generation.h"
#include "server/router/validate.h"
#include "server/router/worker_state.h"
#include "tests/simulation/system/event_loop.h"
#include "tests/simulation/system/server_stream.h"
#include "tests/simulation/system/simulated_call.h"

namespace baton {

class SimulatedRouter;

// One thread. Kept by the router until nothing can bring it an event any more;
// dropped with it in a crash.
class RouterCall final : public std::enable_shared_from_this<RouterCall> {
 public:
  using Client = ServerStream<v1::GenerateResponse, GenerateResponseTraits>;

  RouterCall(GenerationPlan plan, SimulatedRouter* router, uint64_t number,
             StreamStart<v1::GenerateResponse> client);

  void Start();
  // The router drains, and has waited long enough.
  void Cut();
  // Nothing happens here any more.
  void OnCrash();
  bool is_over() const;

  const Generation& generation() const { return generation_; }

 private:
  using Actions = GenerationActions;
  // One attempt's calls.
  struct Calls {
    explicit Calls(uint32_t its_number) : number(its_number) {}
    const uint32_t number;
    std::optional<Route> route;  // Counted at the pool.
    RouteReports reports;
    uint64_t id_counter = 0;
    std::shared_ptr<SimulatedCall> prefill;  // See SimulatedCall.
    std::shared_ptr<SimulatedCall> decode;   // Likewise.
    bool prefill_ended = false;
    bool decode_ended = false;
    EventLoop::Timer timer;
    uint32_t num_unfinished = 0;
    std::optional<v1::GetLoadResponse> load;
    bool told_ended = false;
    bool released = false;
  };

  template <typename Event>
  void Handle(Event&& event);
  void Perform(const Actions& actions);
  // False: it was the end of all attempts.
  bool TakeRetry(uint32_t attempt, std::string_view reason);
  void EnterQueue();
  // False: it was the end of all attempts.
  bool FindRoute(uint32_t attempt, std::string_view retry_reason);
  void StartPrefill(Calls* calls);
  void StartDecode(Calls* calls);
  void StartAbort(const Calls& calls, uint32_t sample_index);
  template <typename Event>
  void StartTimer(Calls* calls, absl::Duration duration, Event event);
  absl::Status WhyClientIsGone() const;
  void OnClientGone();
  void OnFlow(bool paused);
  void FollowClient(bool paused);
  void Finish();
  void ReleaseUnstarted();
  void TellEnded(Calls* calls);
  // At most one live attempt has a sample.
  void CheckAttempts() const;

  SimulatedRouter& router_;
  const AdmissionTicket ticket_;
  const absl::Time deadline_;
  const std::vector<PrefixKey> prefix_keys_;
  Generation generation_;
  Client client_;
  bool client_paused_ = false;
  bool performing_ = false;
  std::deque<Actions> pending_;
  bool in_queue_ = false;
  bool finished_ = false;
  std::vector<std::unique_ptr<Calls>> calls_;  // By attempt.
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_ROUTER_CALL_H_
