#include "server/router/worker_client.h"

#include "server/edge/grpc_limits.h"

namespace baton {
namespace {

// How soon after a failure to connect again; growing up to the second.
constexpr int kInitialReconnectMilliseconds = 100;
constexpr int kMaxReconnectMilliseconds = 250;
constexpr std::chrono::seconds kAbortTimeout(5);

// shared_ptr is gRPC's own way to hand out a channel.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  SetWorkerChannelLimits(&arguments);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   kInitialReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   kMaxReconnectMilliseconds);
  // We retry ourselves; gRPC's layer for it costs time in every message.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

}  // namespace

WorkerClient::WorkerClient(const std::string& address)
    : WorkerClient(address, MakeChannel(address)) {}

WorkerClient::WorkerClient(const std::string& address,
                           // Shared by the stubs.
                           const std::shared_ptr<grpc::Channel>& channel)
    : address_(address),
      worker_(v1::WorkerService::NewStub(channel)),
      health_(grpc::health::v1::Health::NewStub(channel)) {}

void WorkerClient::StartPrefill(const v1::PrefillRequest& request,
                                Deadline deadline, PrefillStream* stream) {
  stream->context_.set_deadline(deadline);
  worker_->async()->Prefill(&stream->context_, &request, stream);
  stream->StartRead(&stream->response_);
  stream->StartCall();
}

void WorkerClient::StartDecode(const v1::DecodeRequest& request,
                               Deadline deadline, DecodeStream* stream) {
  stream->context_.set_deadline(deadline);
  worker_->async()->Decode(&stream->context_, &request, stream);
  stream->StartRead(&stream->response_);
  stream->StartCall();
}

void WorkerClient::StartAbort(const v1::AbortRequest& request) {
  struct Call {
    grpc::ClientContext context;
    v1::AbortRequest request;
    v1::AbortResponse response;
  };
  Call* const call = new Call;  // Deleted at its end.
  call->request = request;
  call->context.set_deadline(std::chrono::system_clock::now() + kAbortTimeout);
  worker_->async()->Abort(&call->context, &call->request, &call->response,
                          [call](const grpc::Status&) { delete call; });
}

void WorkerClient::StartWatchLoad(LoadStream* stream) {
  const v1::WatchLoadRequest request;
  stream->context_.set_wait_for_ready(true);
  worker_->async()->WatchLoad(&stream->context_, &request, stream);
  stream->StartRead(&stream->response_);
  stream->StartCall();
}

void WorkerClient::StartWatchHealth(HealthStream* stream) {
  const grpc::health::v1::HealthCheckRequest request;
  stream->context_.set_wait_for_ready(true);
  health_->async()->Watch(&stream->context_, &request, stream);
  stream->StartRead(&stream->response_);
  stream->StartCall();
}

absl::StatusOr<v1::GetWorkerInfoResponse> WorkerClient::GetInfo(
    Deadline deadline) {
  grpc::ClientContext context;
  context.set_deadline(deadline);
  {
    absl::MutexLock lock(&mutex_);
    if (questions_cancelled_) return absl::CancelledError();
    question_ = &context;
  }
  v1::GetWorkerInfoResponse info;
  const grpc::Status status =
      worker_->GetWorkerInfo(&context, v1::GetWorkerInfoRequest(), &info);
  absl::MutexLock lock(&mutex_);
  question_ = nullptr;
  if (!status.ok()) return FromGrpcStatus(status);
  return info;
}

void WorkerClient::CancelQuestions() {
  absl::MutexLock lock(&mutex_);
  questions_cancelled_ = true;
  if (question_ != nullptr) question_->TryCancel();
}

}  // namespace baton
