// One Generate call at work: a Generation and all it acts on.
#ifndef BATON_SERVER_ROUTER_GENERATION_CALL_H_
#define BATON_SERVER_ROUTER_GENERATION_CALL_H_

#include <grpcpp/alarm.h>

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
    // Of decode's own thread:
    uint32_t num_finished = 0;                               // Samples.
    std::optional<v1::GetLoadResponse> load = std::nullopt;  // Then.
    bool decode_ended = false;                               // The pool knows.
    bool released = false;  // By ReleaseUnstarted.
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
  void StartAbort(uint32_t sample_index);
  // In the place of an older one.
  template <typename Event>
  void StartTimer(absl::Duration duration, Event event);
  void SendResponses();
  void ObserveTokens(const v1::GenerateChunk& chunk);
  void Finish();
  // Tells the pool, once, of the calls that the current attempt never began.
  void ReleaseUnstarted();
  void LogRetry(std::string_view reason) const;
  void LogAndCount(const v1::GenerateFinished& summary,
                   const absl::Status& status);
  std::string ReasonForLog(const absl::Status& status) const;
  std::string Name() const;
  std::string AttemptForLog() const;

  void OnSampleFinished(Attempt* attempt, const v1::DecodeFinished& finished);
  // A decode call's end at its worker, told once.
  void TellEnded(Attempt* attempt);

  Router& router_;
  GenerateReactor* const client_;
  const std::chrono::system_clock::time_point deadline_;
  const absl::Time arrival_;
  const AdmissionTicket ticket_;  // Names the request in the log, too.
  const std::string client_request_id_;
  const uint32_t num_samples_;

  absl::Mutex mutex_;
  Generation generation_ ABSL_GUARDED_BY(mutex_);
  bool performing_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<GenerationActions> pending_ ABSL_GUARDED_BY(mutex_);

  // Of the thread that carries out.
  bool in_queue_ = false;  // Or past it: it must leave.
  std::vector<std::unique_ptr<Attempt>> attempts_;  // The current one last.
  std::optional<grpc::Alarm> timer_;
  bool has_token_ = false;
  std::vector<absl::Time> last_tokens_;  // Of each sample.
  std::set<v1::FinishReason> reasons_;   // Told so far.
  HistogramBatch inter_token_latency_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATION_CALL_H_
