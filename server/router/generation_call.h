// One Generate call at work: a Generation and all it acts on.
#ifndef BATON_SERVER_ROUTER_GENERATION_CALL_H_
#define BATON_SERVER_ROUTER_GENERATION_CALL_H_

#include <grpcpp/alarm.h>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/edge/metrics.h"
#include "server/router/generate_reactor.h"
#include "server/router/generation.h"
#include "server/router/router.h"
#include "server/router/validate.h"
#include "server/router/worker_client.h"

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

 private:
  // The calls of one attempt, and where they go.
  struct Attempt {
    uint32_t number = 0;
    Route route;
    std::unique_ptr<PrefillStream> prefill;
    std::unique_ptr<DecodeStream> decode;
    bool decode_ended = false;  // The pool knows. Of decode's own thread.
    bool released = false;      // By ReleaseUnstarted.
  };

  // Runs `event`, a callable (Generation&, absl::Time) -> GenerationActions.
  template <typename Event>
  void Handle(Event&& event) ABSL_LOCKS_EXCLUDED(mutex_);

  // Carrying out: one thread at a time.
  void Perform(const GenerationActions& actions);
  void EnterQueue();
  void FindRoute();
  void StartPrefill();
  void StartDecode();
  // In the place of an older one.
  template <typename Event>
  void StartTimer(absl::Duration duration, Event event);
  void SendPromptLogprobs();
  void SendChunk();
  void ObserveTokens(int num_tokens);
  void Finish();
  // Tells the pool, once, of the calls that the current attempt never began.
  void ReleaseUnstarted();
  void LogRetry(std::string_view reason) const;
  void LogAndCount(const v1::GenerateFinished& finished,
                   const absl::Status& status);
  std::string Name() const;
  std::string AttemptForLog() const;

  // A decode call's end at its worker, told once.
  void TellEnded(Attempt* attempt,
                 const std::optional<v1::GetLoadResponse>& load);

  Router& router_;
  GenerateReactor* const client_;
  const std::chrono::system_clock::time_point deadline_;
  const absl::Time arrival_;
  const AdmissionTicket ticket_;  // Names the request in the log, too.
  const std::string client_request_id_;

  absl::Mutex mutex_;
  Generation generation_ ABSL_GUARDED_BY(mutex_);
  bool performing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<GenerationActions> pending_ ABSL_GUARDED_BY(mutex_);

  // Of the thread that carries out.
  bool in_queue_ = false;  // Or past it: it must leave.
  std::vector<std::unique_ptr<Attempt>> attempts_;  // The current one last.
  std::optional<grpc::Alarm> timer_;
  absl::Time last_tokens_ = absl::InfinitePast();
  HistogramBatch inter_token_latency_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATION_CALL_H_
