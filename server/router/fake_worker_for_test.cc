#include "server/router/fake_worker_for_test.h"

#include <grpc/grpc.h>

#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/logging.h"
#include "server/edge/health.h"

namespace baton {
namespace {

void FillTokens(uint32_t attempt, uint32_t first_token_index,
                const std::vector<uint32_t>& token_ids, v1::TokenChunk* chunk) {
  chunk->set_attempt(attempt);
  chunk->set_first_token_index(first_token_index);
  for (uint32_t id : token_ids) {
    chunk->add_token_ids(id);
    chunk->add_logprobs(-static_cast<float>(first_token_index++));
  }
}

}  // namespace

bool WaitFor(const std::function<bool()>& condition, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const absl::Notification never;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    never.WaitForNotificationWithTimeout(absl::Milliseconds(1));
  }
  return true;
}

template <>
void FakePrefillStream::SendTokens(uint32_t first_token_index,
                                   const std::vector<uint32_t>& token_ids,
                                   uint32_t sample_index) {
  v1::PrefillResponse response;
  response.mutable_first_tokens()->set_sample_index(sample_index);
  FillTokens(attempt_, first_token_index, token_ids,
             response.mutable_first_tokens());
  Send(response);
}

template <>
void FakeDecodeStream::SendTokens(uint32_t first_token_index,
                                  const std::vector<uint32_t>& token_ids,
                                  uint32_t sample_index) {
  v1::DecodeResponse response;
  response.mutable_chunk()->set_sample_index(sample_index);
  FillTokens(attempt_, first_token_index, token_ids, response.mutable_chunk());
  Send(response);
}

void SendHandle(FakePrefillStream* stream, const std::string& handle) {
  v1::PrefillResponse response;
  response.set_kv_handle(handle);
  stream->Send(response);
}

void SendReleased(FakePrefillStream* stream, double prefill_seconds,
                  uint32_t cached_tokens) {
  v1::PrefillResponse response;
  response.mutable_released()->set_queue_seconds(0.5);
  response.mutable_released()->set_prefill_seconds(prefill_seconds);
  response.mutable_released()->set_cached_tokens(cached_tokens);
  stream->Send(response);
}

void SendFinished(FakeDecodeStream* stream, v1::WorkerFinishReason reason,
                  uint32_t completion_tokens, uint32_t sample_index) {
  v1::DecodeResponse response;
  v1::DecodeFinished* const finished = response.mutable_finished();
  finished->set_attempt(stream->attempt());
  finished->set_sample_index(sample_index);
  finished->set_finish_reason(reason);
  finished->set_completion_tokens(completion_tokens);
  finished->set_queue_seconds(0.125);
  finished->set_prefill_seconds(0.75);
  finished->set_cached_tokens(2);
  finished->set_kv_transfer_seconds(0.0625);
  finished->set_kv_transfer_bytes(4096);
  stream->Send(response);
}

FakeWorker::FakeWorker(v1::GetWorkerInfoResponse info,
                       const std::string& address)
    : role_(info.role()), info_(std::move(info)) {
  // Once for the process: taking gRPC's state down may wait 10 s for a poller.
  static const bool kept = (grpc_init(), true);
  CHECK(kept);
  EnableHealthAndReflection();
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr);
}

FakeWorker::~FakeWorker() { Die(); }

std::string FakeWorker::address() const {
  return absl::StrCat("127.0.0.1:", port_);
}

void FakeWorker::Die() {
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

void FakeWorker::SetPrefill(PrefillScript script) {
  absl::MutexLock lock(&mutex_);
  prefill_ = std::move(script);
}

void FakeWorker::SetDecode(DecodeScript script) {
  absl::MutexLock lock(&mutex_);
  decode_ = std::move(script);
}

void FakeWorker::SetInfo(v1::GetWorkerInfoResponse info) {
  absl::MutexLock lock(&mutex_);
  info_ = std::move(info);
  ++process_;
}

void FakeWorker::SetOnGetInfo(std::function<void()> hook) {
  absl::MutexLock lock(&mutex_);
  on_get_info_ = std::move(hook);
}

void FakeWorker::SetRunning(uint32_t running) {
  absl::MutexLock lock(&mutex_);
  running_ = running;
}

void FakeWorker::SetSilent(bool silent) {
  absl::MutexLock lock(&mutex_);
  silent_ = silent;
}

void FakeWorker::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

std::vector<v1::WorkerRequest> FakeWorker::requests() const {
  absl::MutexLock lock(&mutex_);
  return requests_;
}

int FakeWorker::num_open() const {
  absl::MutexLock lock(&mutex_);
  return num_open_;
}

int FakeWorker::num_infos() const {
  absl::MutexLock lock(&mutex_);
  return num_infos_;
}

std::vector<v1::AbortRequest> FakeWorker::aborts() const {
  absl::MutexLock lock(&mutex_);
  return aborts_;
}

grpc::Status FakeWorker::Prefill(
    grpc::ServerContext* context, const v1::PrefillRequest* request,
    grpc::ServerWriter<v1::PrefillResponse>* writer) {
  OnCallBegan(request->request());
  PrefillScript script;
  {
    absl::MutexLock lock(&mutex_);
    script = prefill_;
  }
  FakePrefillStream stream(context, writer, request->request().attempt());
  grpc::Status status = script(request->request(), &stream);
  OnCallEnded();
  return status;
}

grpc::Status FakeWorker::Decode(
    grpc::ServerContext* context, const v1::DecodeRequest* request,
    grpc::ServerWriter<v1::DecodeResponse>* writer) {
  OnCallBegan(request->request());
  DecodeScript script;
  {
    absl::MutexLock lock(&mutex_);
    script = decode_;
  }
  FakeDecodeStream stream(context, writer, request->request().attempt());
  grpc::Status status = script(*request, &stream);
  OnCallEnded();
  return status;
}

grpc::Status FakeWorker::Abort(grpc::ServerContext*,
                               const v1::AbortRequest* request,
                               v1::AbortResponse*) {
  absl::MutexLock lock(&mutex_);
  aborts_.push_back(*request);
  return grpc::Status::OK;
}

grpc::Status FakeWorker::WatchLoad(
    grpc::ServerContext* context, const v1::WatchLoadRequest*,
    grpc::ServerWriter<v1::GetLoadResponse>* writer) {
  // How soon it sees that the call is over.
  constexpr absl::Duration kInterval = absl::Milliseconds(20);
  std::optional<int> process;
  int64_t told = -1;
  const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return draining_ || process != process_ ||
           (!silent_ && told != int64_t{running_} + num_open_);
  };
  while (!context->IsCancelled()) {
    v1::GetLoadResponse load;
    {
      absl::MutexLock lock(&mutex_);
      if (!process.has_value()) process = process_;
      mutex_.AwaitWithTimeout(absl::Condition(&changed), kInterval);
      if (draining_ || process != process_) break;
      if (silent_) continue;
      load.set_running_requests(running_ + num_open_);
    }
    if (!writer->Write(load)) break;
    told = load.running_requests();
  }
  return {grpc::StatusCode::UNAVAILABLE, "draining"};
}

grpc::Status FakeWorker::GetWorkerInfo(grpc::ServerContext*,
                                       const v1::GetWorkerInfoRequest*,
                                       v1::GetWorkerInfoResponse* response) {
  std::function<void()> hook;
  {
    absl::MutexLock lock(&mutex_);
    ++num_infos_;
    *response = info_;
    hook = on_get_info_;
  }
  if (hook) hook();
  return grpc::Status::OK;
}

void FakeWorker::OnCallBegan(const v1::WorkerRequest& request) {
  absl::MutexLock lock(&mutex_);
  requests_.push_back(request);
  ++num_open_;
}

void FakeWorker::OnCallEnded() {
  absl::MutexLock lock(&mutex_);
  --num_open_;
}

}  // namespace baton
