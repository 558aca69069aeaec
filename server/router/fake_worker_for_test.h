// A worker on a real port whose answers a test writes.
#ifndef BATON_SERVER_ROUTER_FAKE_WORKER_FOR_TEST_H_
#define BATON_SERVER_ROUTER_FAKE_WORKER_FOR_TEST_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/baton/v1/worker.grpc.pb.h"

namespace baton {

// Asks again and again, for at most `timeout`; the last answer.
bool WaitFor(const std::function<bool()>& condition,
             absl::Duration timeout = absl::Seconds(20));

// One call's end at the worker.
template <typename Response>
class FakeStream final {
 public:
  FakeStream(grpc::ServerContext* context, grpc::ServerWriter<Response>* writer,
             uint32_t attempt)
      : context_(context), writer_(writer), attempt_(attempt) {}

  void Send(const Response& response) { writer_->Write(response); }
  // Token i is `first + i`-th; its log-probability is -its index.
  void SendTokens(uint32_t first_token_index,
                  const std::vector<uint32_t>& token_ids,
                  uint32_t sample_index = 0);
  bool IsCancelled() const { return context_->IsCancelled(); }
  // True once it is cancelled.
  bool WaitUntilCancelled() const {
    return WaitFor([this] { return IsCancelled(); });
  }
  uint32_t attempt() const { return attempt_; }
  grpc::ServerContext* context() { return context_; }

 private:
  grpc::ServerContext* const context_;
  grpc::ServerWriter<Response>* const writer_;
  const uint32_t attempt_;
};

using FakePrefillStream = FakeStream<v1::PrefillResponse>;
using FakeDecodeStream = FakeStream<v1::DecodeResponse>;

void SendHandle(FakePrefillStream* stream, const std::string& handle);
void SendReleased(FakePrefillStream* stream, double prefill_seconds = 0.25,
                  uint32_t cached_tokens = 1);
void SendFinished(FakeDecodeStream* stream, v1::WorkerFinishReason reason,
                  uint32_t completion_tokens, uint32_t sample_index = 0);

// Thread-safe.
class FakeWorker final : public v1::WorkerService::Service {
 public:
  using PrefillScript =
      std::function<grpc::Status(const v1::WorkerRequest&, FakePrefillStream*)>;
  using DecodeScript =
      std::function<grpc::Status(const v1::DecodeRequest&, FakeDecodeStream*)>;

  // Listens on loopback, on a free port unless told otherwise.
  explicit FakeWorker(v1::GetWorkerInfoResponse info,
                      const std::string& address = "127.0.0.1:0");
  ~FakeWorker() override;

  std::string address() const;
  v1::WorkerRole role() const { return role_; }
  grpc::Server* server() { return server_.get(); }
  // As a process that dies: its calls break and its port is closed.
  void Die();
  // As one that drains: its loads' streams end, and no new one begins.
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_);

  void SetPrefill(PrefillScript script) ABSL_LOCKS_EXCLUDED(mutex_);
  void SetDecode(DecodeScript script) ABSL_LOCKS_EXCLUDED(mutex_);
  // As another process in its place: its loads' streams end.
  void SetInfo(v1::GetWorkerInfoResponse info) ABSL_LOCKS_EXCLUDED(mutex_);
  // Called by each GetWorkerInfo, which it may hold up.
  void SetOnGetInfo(std::function<void()> hook) ABSL_LOCKS_EXCLUDED(mutex_);
  // Besides its open calls, in the loads that it tells.
  void SetRunning(uint32_t running) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells no load any more, in streams that stay open.
  void SetSilent(bool silent) ABSL_LOCKS_EXCLUDED(mutex_);

  // Every request so far, and the calls that have not ended.
  std::vector<v1::WorkerRequest> requests() const ABSL_LOCKS_EXCLUDED(mutex_);
  int num_open() const ABSL_LOCKS_EXCLUDED(mutex_);
  // GetWorkerInfo calls so far.
  int num_infos() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Every Abort so far.
  std::vector<v1::AbortRequest> aborts() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  grpc::Status Prefill(
      grpc::ServerContext* context, const v1::PrefillRequest* request,
      grpc::ServerWriter<v1::PrefillResponse>* writer) override;
  grpc::Status Decode(grpc::ServerContext* context,
                      const v1::DecodeRequest* request,
                      grpc::ServerWriter<v1::DecodeResponse>* writer) override;
  grpc::Status Abort(grpc::ServerContext* context,
                     const v1::AbortRequest* request,
                     v1::AbortResponse* response) override;
  grpc::Status WatchLoad(
      grpc::ServerContext* context, const v1::WatchLoadRequest* request,
      grpc::ServerWriter<v1::GetLoadResponse>* writer) override;
  grpc::Status GetWorkerInfo(grpc::ServerContext* context,
                             const v1::GetWorkerInfoRequest* request,
                             v1::GetWorkerInfoResponse* response) override;
  void OnCallBegan(const v1::WorkerRequest& request)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void OnCallEnded() ABSL_LOCKS_EXCLUDED(mutex_);

  const v1::WorkerRole role_;

  mutable absl::Mutex mutex_;
  v1::GetWorkerInfoResponse info_ ABSL_GUARDED_BY(mutex_);
  PrefillScript prefill_ ABSL_GUARDED_BY(mutex_);
  DecodeScript decode_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_get_info_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::WorkerRequest> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::AbortRequest> aborts_ ABSL_GUARDED_BY(mutex_);
  int num_open_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_infos_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  int process_ ABSL_GUARDED_BY(mutex_) = 0;  // Counts SetInfo.

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_FAKE_WORKER_FOR_TEST_H_
