// One Generate call at work: a Generation and all it acts on.
#ifndef BATON_SERVER_ROUTER_GENERATION_CALL_H_
#define BATON_SERVER_ROUTER_GENERATION_CALL_H_

#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/prefix_key.h"
#include "server/edge/metrics.h"
#include "server/router/call_report.h"
#include "server/router/generate_reactor.h"
#include "server/router/generation.h"
#include "server/router/router.h"
#include "server/router/validate.h"
#include "server/router/worker_client.h"
#include "server/router/worker_connections.h"

namespace baton {

// Events come on gRPC's threads, several at once. Each runs through the state
// machine under the mutex; what it answers is carried out without the mutex, in
// order, by one thread at a time: a thread whose event comes while another one
// carries out leaves its actions to that one. So nothing blocks and nothing
// hops.
//
// Shared by whoever may still bring an event (the client's reactor, the streams
// to workers, the timer, the admission queue): the last one deletes it.
class GenerationCall final
    : public std::enable_shared_from_this<GenerationCall> {
 public:
  struct Options {
    Router* router = nullptr;           // Borrowed; outlives this.
    GenerateReactor* client = nullptr;  // Not touched after its End.
    std::chrono::system_clock::time_point deadline;
    absl::Time arrival;  // Of the router's clock.
  };

  GenerationCall(GenerationPlan plan, Options options);
  ~GenerationCall();

  // Begins. At the end, whatever it is, the client's call is ended.
  void Start();
  void OnEarlyEnd(EarlyEnd why);
  // What a client hears whose call ends so.
  static absl::Status StatusOf(EarlyEnd why,
                               std::chrono::system_clock::time_point deadline);
  // The client has fallen behind: nothing more is read from the workers until
  // it has caught up.
  void OnFlow(bool paused);

 private:
  // One attempt's calls, and where they go.
  struct Calls {
    explicit Calls(uint32_t its_number) : number(its_number) {}
    const uint32_t number;
    // Once there is one: counted at the pool.
    std::optional<Route> route;
    uint64_t id_counter = 0;
    std::optional<WorkerUse> prefill_worker;
    std::optional<WorkerUse> decode_worker;
    RouteReports reports;
    std::unique_ptr<PrefillStream> prefill;
    std::unique_ptr<DecodeStream> decode;
    std::optional<grpc::Alarm> timer;
    // Of decode's own thread:
    uint32_t num_unfinished = 0;              // Samples.
    std::optional<v1::GetLoadResponse> load;  // When there were none.
    bool decode_ended = false;                // The pool knows.
    bool released = false;                    // By ReleaseUnstarted.
  };

  // Runs `event`, a callable (Generation&, absl::Time) -> GenerationActions.
  template <typename Event>
  void Handle(Event&& event) ABSL_LOCKS_EXCLUDED(mutex_);

  // Carrying out: one thread at a time.
  void Perform(const GenerationActions& actions);
  void EnterQueue();
  void OnTurn();
  // Not OK if it can't meet its deadline behind so many others, which is
  // counted, or has missed it.
  absl::Status CheckDeadline(uint32_t num_ahead) const;
  // Of its calls to workers: they end while there is time to tell the client.
  std::chrono::system_clock::time_point WorkerDeadline() const;
  // `retry_reason`: why it takes another one's place; empty: it does not, or is
  // counted. False: it was the end of all of them.
  bool FindRoute(uint32_t attempt, std::string_view retry_reason);
  void StartPrefill(Calls* calls);
  void StartDecode(Calls* calls);
  void StartAbort(const Calls& calls, uint32_t sample_index);
  // In the place of an older one.
  template <typename Event>
  void StartTimer(Calls* calls, absl::Duration duration, Event event);
  void FollowClient(bool paused);
  void SendResponses();
  void ObserveTokens(const v1::GenerateChunk& chunk);
  void Finish();
  void ObserveTimes(const v1::GenerateFinished& summary);
  // Tells the pool, once, of the calls that attempts which are over never
  // began.
  void ReleaseUnstarted();
  // Counts it, unless the budget of all requests has no such attempt left.
  bool TakeRetry(uint32_t attempt, std::string_view reason)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void LogAndCount(const v1::GenerateFinished& summary,
                   const absl::Status& status);
  std::string ReasonForLog(const absl::Status& status) const;
  std::string Name() const;
  std::string AttemptsForLog() const;

  void OnSampleFinished(Calls* calls, const v1::DecodeFinished& finished);
  // A decode call's end at its worker, told once.
  void TellEnded(Calls* calls);

  Router& router_;
  GenerateReactor* const client_;
  const std::chrono::system_clock::time_point deadline_;
  const absl::Time arrival_;
  const AdmissionTicket ticket_;  // Names the request in the log, too.
  const std::string client_request_id_;
  const uint32_t num_samples_;
  const uint32_t num_prompt_tokens_;
  const std::vector<PrefixKey> prefix_keys_;

  std::atomic<bool> client_paused_{false};

  absl::Mutex mutex_;
  Generation generation_ ABSL_GUARDED_BY(mutex_);
  bool performing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<GenerationActions> pending_ ABSL_GUARDED_BY(mutex_);

  // Of the thread that carries out.
  bool in_queue_ = false;  // Or past it: it must leave.
  bool finished_ = false;
  bool was_paused_ = false;                    // By its client, ever.
  std::vector<std::unique_ptr<Calls>> calls_;  // By attempt.
  bool has_token_ = false;
  std::vector<absl::Time> last_tokens_;  // Of each sample.
  std::set<v1::FinishReason> reasons_;   // Told so far.
  HistogramBatch inter_token_latency_;

  absl::Time turn_ = absl::InfiniteFuture();  // Set before OnAdmitted.
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATION_CALL_H_
