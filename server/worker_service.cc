#include "server/worker_service.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/balance_metrics.h"
#include "server/convert.h"
#include "server/edge/grpc_status.h"
#include "server/group_metrics.h"

namespace baton {
namespace {

constexpr char kWrongRole[] = "WRONG_ROLE";
constexpr char kWrongFingerprint[] = "WRONG_FINGERPRINT";

// The call's deadline on `clock`, which is not the system's.
absl::Time DeadlineOn(const Clock& clock,
                      std::chrono::system_clock::time_point deadline) {
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return absl::InfiniteFuture();
  }
  return clock.Now() +
         absl::FromChrono(deadline - std::chrono::system_clock::now());
}

// A stream that ends at once.
template <typename Response>
class RefusedStream final : public grpc::ServerWriteReactor<Response> {
 public:
  explicit RefusedStream(const absl::Status& status) {
    this->Finish(ToGrpcStatus(status));
  }
  void OnDone() override { delete this; }
};

template <typename Response>
grpc::ServerWriteReactor<Response>* Refuse(const absl::Status& status) {
  return new RefusedStream<Response>(status);
}

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

bool HasFewerRequests(const LLMEngine* one, const LLMEngine* other) {
  const auto requests = [](const EngineLoad& load) {
    return uint64_t{load.running_requests} + load.waiting_requests;
  };
  return requests(one->load()) < requests(other->load());
}

}  // namespace

WorkerService::WorkerService(v1::GetWorkerInfoResponse info,
                             const TokenStreamEnvironment& environment)
    : info_(std::move(info)),
      environment_(environment),
      load_feed_(environment.clock, environment.gate, environment.streams,
                 [this] { return LoadOf(environment_.engines); }) {
  CHECK(!environment.engines.empty());
}

grpc::ServerWriteReactor<v1::PrefillResponse>* WorkerService::Prefill(
    grpc::CallbackServerContext* context, const v1::PrefillRequest* request) {
  return Stream<v1::PrefillResponse>(context, *request);
}

grpc::ServerWriteReactor<v1::DecodeResponse>* WorkerService::Decode(
    grpc::CallbackServerContext* context, const v1::DecodeRequest* request) {
  return Stream<v1::DecodeResponse>(context, *request);
}

template <typename Response, typename Request>
grpc::ServerWriteReactor<Response>* WorkerService::Stream(
    grpc::CallbackServerContext* context, const Request& request) {
  if (absl::Status status = environment_.gate->EnterWith(
          {.message_bytes = request.ByteSizeLong(),
           .num_samples = request.request().num_samples()});
      !status.ok()) {
    return Refuse<Response>(status);
  }
  absl::StatusOr<GenerationRequest> converted = Convert(*context, request);
  absl::StatusOr<LLMEngine*> engine = FindEngine(request.request());
  if (converted.ok() && !engine.ok()) converted = engine.status();
  auto* reactor = new TokenStreamReactor<Response>(
      context, environment_, converted.ok() ? converted->num_samples : 1);
  reactor->Start(std::move(converted), engine.value_or(nullptr));
  load_feed_.OnRequest();
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::Abort(
    grpc::CallbackServerContext* context, const v1::AbortRequest* request,
    v1::AbortResponse*) {
  const absl::StatusOr<RequestId> id = ToRequestId(*request);
  if (!id.ok()) return Answer(context, id.status());
  for (LLMEngine* engine : environment_.engines) {
    engine->Abort(*id, request->has_sample_index()
                           ? std::optional<uint32_t>(request->sample_index())
                           : std::nullopt);
  }
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* WorkerService::GetLoad(
    grpc::CallbackServerContext* context, const v1::GetLoadRequest*,
    v1::GetLoadResponse* response) {
  *response = LoadOf(environment_.engines);
  response->set_imported_kv_bytes(environment_.metrics->imported_kv_bytes());
  if (environment_.group != nullptr) {
    *response->mutable_group() = environment_.group->load();
  }
  if (environment_.balance != nullptr) {
    environment_.balance->AddTo(response->mutable_group());
  }
  return Answer(context, absl::OkStatus());
}

grpc::ServerWriteReactor<v1::GetLoadResponse>* WorkerService::WatchLoad(
    grpc::CallbackServerContext* context, const v1::WatchLoadRequest* request) {
  return load_feed_.Watch(context, *request);
}

grpc::ServerUnaryReactor* WorkerService::GetWorkerInfo(
    grpc::CallbackServerContext* context, const v1::GetWorkerInfoRequest*,
    v1::GetWorkerInfoResponse* response) {
  *response = info_;
  return Answer(context, absl::OkStatus());
}

template <typename Request>
absl::StatusOr<GenerationRequest> WorkerService::Convert(
    const grpc::CallbackServerContext& context, const Request& request) const {
  RETURN_IF_ERROR(CheckRole(request));
  RETURN_IF_ERROR(CheckFingerprint(request.request()));
  ASSIGN_OR_RETURN(
      GenerationRequest out,
      ToGenerationRequest(request, environment_.engines.front()->limits()));
  out.deadline = DeadlineOn(*environment_.clock, context.deadline());
  return out;
}

absl::Status WorkerService::CheckRole(const v1::PrefillRequest&) const {
  if (info_.role() == v1::WORKER_ROLE_PREFILL) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError("this worker is no prefill server"),
      kWrongRole);
}

absl::Status WorkerService::CheckRole(const v1::DecodeRequest& request) const {
  if (info_.role() == v1::WORKER_ROLE_PREFILL) {
    return WithReason(
        absl::FailedPreconditionError("this worker is a prefill server"),
        kWrongRole);
  }
  if (info_.role() == v1::WORKER_ROLE_UNIFIED && request.has_kv_handle()) {
    return WithReason(
        absl::FailedPreconditionError("a unified worker imports no KV"),
        kWrongRole);
  }
  return absl::OkStatus();
}

absl::Status WorkerService::CheckFingerprint(
    const v1::WorkerRequest& request) const {
  if (!request.has_fingerprint() ||
      request.fingerprint() == info_.fingerprint()) {
    return absl::OkStatus();
  }
  return WithReason(absl::FailedPreconditionError(absl::StrCat(
                        "this worker's fingerprint is ", info_.fingerprint())),
                    kWrongFingerprint);
}

absl::StatusOr<LLMEngine*> WorkerService::FindEngine(
    const v1::WorkerRequest& request) const {
  const std::vector<LLMEngine*>& engines = environment_.engines;
  if (!request.has_local_rank()) {
    return *std::min_element(engines.begin(), engines.end(), HasFewerRequests);
  }
  if (request.local_rank() < engines.size()) {
    return engines[request.local_rank()];
  }
  return FieldError(
      "request.local_rank",
      absl::StrCat("is not one of the ", engines.size(), " ranks here"));
}

}  // namespace baton
