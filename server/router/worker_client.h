// The calls that the router makes to one worker.
#ifndef BATON_SERVER_ROUTER_WORKER_CLIENT_H_
#define BATON_SERVER_ROUTER_WORKER_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/baton/v1/health.grpc.pb.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "server/edge/grpc_status.h"

namespace baton {

// One streaming call to a worker, as callbacks on gRPC's threads, one at a
// time: on_message for each message, then on_end once. Whoever makes it keeps
// it until on_end was called; on_end may drop the last reference to it.
template <typename Response>
class WorkerStream final : public grpc::ClientReadReactor<Response> {
 public:
  using OnMessage = absl::AnyInvocable<void(Response*)>;
  using OnEnd = absl::AnyInvocable<void(const absl::Status&)>;

  WorkerStream(OnMessage on_message, OnEnd on_end)
      : on_message_(std::move(on_message)), on_end_(std::move(on_end)) {}

  // Ends the call soon, also before it has begun. From any thread.
  void Cancel() {
    context_.TryCancel();
    SetPaused(false);
  }

  // While it is paused nothing more is read: what the worker sends fills the
  // windows of HTTP/2, and then waits there. Its end is not heard of either.
  // From any thread, whether the call has begun or is over.
  void SetPaused(bool paused) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      paused_ = paused;
      if (paused || !std::exchange(waits_, false)) return;
    }
    this->StartRead(&response_);
    this->RemoveHold();
  }

 private:
  friend class WorkerClient;

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone is next.
    on_message_(&response_);
    if (!MayRead()) return;
    this->StartRead(&response_);
  }
  // False: SetPaused starts the next read. Until then the call is not over.
  bool MayRead() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!paused_) return true;
    waits_ = true;
    this->AddHold();
    return false;
  }
  void OnDone(const grpc::Status& status) override {
    on_message_ = nullptr;
    OnEnd on_end = std::move(on_end_);
    on_end(FromGrpcStatus(status));
  }

  OnMessage on_message_;
  OnEnd on_end_;
  grpc::ClientContext context_;
  Response response_;

  absl::Mutex mutex_;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;  // A read is due.
};

using PrefillStream = WorkerStream<v1::PrefillResponse>;
using DecodeStream = WorkerStream<v1::DecodeResponse>;
using LoadStream = WorkerStream<v1::GetLoadResponse>;
using HealthStream = WorkerStream<grpc::health::v1::HealthCheckResponse>;

// Thread-safe.
class WorkerClient final {
 public:
  using Deadline = std::chrono::system_clock::time_point;

  // host:port. Connects when first used, and again when lost.
  explicit WorkerClient(const std::string& address);

  const std::string& address() const { return address_; }

  // The stream is the caller's, new, and begun by this.
  void StartPrefill(const v1::PrefillRequest& request, Deadline deadline,
                    PrefillStream* stream);
  void StartDecode(const v1::DecodeRequest& request, Deadline deadline,
                   DecodeStream* stream);
  // Whether it arrives is not told.
  void StartAbort(const v1::AbortRequest& request);

  // Without a deadline: they wait for a worker that is not there, and only
  // while somebody waits does gRPC connect.
  void StartWatchLoad(LoadStream* stream);
  void StartWatchHealth(HealthStream* stream);
  // Blocks; one thread at a time.
  absl::StatusOr<v1::GetWorkerInfoResponse> GetInfo(Deadline deadline)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends a GetInfo that runs, and all later ones.
  void CancelQuestions() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  WorkerClient(const std::string& address,
               // Shared by both stubs.
               const std::shared_ptr<grpc::Channel>& channel);

  const std::string address_;
  const std::unique_ptr<v1::WorkerService::Stub> worker_;
  const std::unique_ptr<grpc::health::v1::Health::Stub> health_;

  absl::Mutex mutex_;
  bool questions_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* question_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_WORKER_CLIENT_H_
