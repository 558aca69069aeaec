// baton.v1.WorkerService over the engines of a process's ranks.
#ifndef BATON_SERVER_WORKER_SERVICE_H_
#define BATON_SERVER_WORKER_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include "absl/status/statusor.h"
#include "engine/generation_request.h"
#include "engine/llm_engine.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "server/load_feed.h"
#include "server/token_messages.h"
#include "server/token_stream_reactor.h"

namespace baton {

// Thread-safe; called on gRPC's threads, which it never blocks.
class WorkerService final : public v1::WorkerService::CallbackService {
 public:
  // `info` is what GetWorkerInfo answers; its role decides which calls are
  // served.
  WorkerService(v1::GetWorkerInfoResponse info,
                const TokenStreamEnvironment& environment);

  grpc::ServerWriteReactor<v1::PrefillResponse>* Prefill(
      grpc::CallbackServerContext* context,
      const v1::PrefillRequest* request) override;
  grpc::ServerWriteReactor<v1::DecodeResponse>* Decode(
      grpc::CallbackServerContext* context,
      const v1::DecodeRequest* request) override;
  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortRequest* request,
                                  v1::AbortResponse* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const v1::GetLoadRequest* request,
                                    v1::GetLoadResponse* response) override;
  grpc::ServerWriteReactor<v1::GetLoadResponse>* WatchLoad(
      grpc::CallbackServerContext* context,
      const v1::WatchLoadRequest* request) override;
  grpc::ServerUnaryReactor* GetWorkerInfo(
      grpc::CallbackServerContext* context,
      const v1::GetWorkerInfoRequest* request,
      v1::GetWorkerInfoResponse* response) override;

 private:
  template <typename Response, typename Request>
  grpc::ServerWriteReactor<Response>* Stream(
      grpc::CallbackServerContext* context, const Request& request);
  template <typename Request>
  absl::StatusOr<GenerationRequest> Convert(
      const grpc::CallbackServerContext& context, const Request& request) const;
  absl::Status CheckRole(const v1::PrefillRequest& request) const;
  absl::Status CheckRole(const v1::DecodeRequest& request) const;
  absl::Status CheckFingerprint(const v1::WorkerRequest& request) const;
  // The rank that the request names, or the one with the fewest requests.
  absl::StatusOr<LLMEngine*> FindEngine(const v1::WorkerRequest& request) const;

  const v1::GetWorkerInfoResponse info_;
  const TokenStreamEnvironment environment_;
  LoadFeed load_feed_;
};

}  // namespace baton

#endif  // BATON_SERVER_WORKER_SERVICE_H_
