// The public API: checks what comes in and hands it on.
#ifndef BATON_SERVER_ROUTER_INFERENCE_SERVICE_H_
#define BATON_SERVER_ROUTER_INFERENCE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "server/edge/request_gate.h"
#include "server/router/generate_reactor.h"
#include "server/router/generation_call.h"
#include "server/router/router.h"
#include "server/router/text_executor.h"
#include "server/router/validate.h"

namespace baton {

// Ids of one Detokenize call.
inline constexpr int kMaxDetokenizeIds = 256 * 1024;
// Bytes of one Tokenize call.
inline constexpr size_t kMaxTokenizeBytes = 4 * 1024 * 1024;

// Thread-safe. Whatever a client sends is answered by a status.
class InferenceService final : public v1::InferenceService::CallbackService {
 public:
  // Both are borrowed and outlive the server.
  InferenceService(Router* router, RequestGate* gate);

  // Where long texts are worked on.
  TextExecutor& text_executor() { return text_executor_; }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context,
      const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(
      grpc::CallbackServerContext* context,
      const v1::DetokenizeRequest* request,
      v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(
      grpc::CallbackServerContext* context,
      const v1::GetModelInfoRequest* request,
      v1::GetModelInfoResponse* response) override;

 private:
  // What is left of a call once its text may be worked on.
  void Begin(const v1::GenerateRequest& request, const ModelBounds& bounds,
             GenerationCall::Options options);
  absl::StatusOr<GenerationPlan> Plan(const v1::GenerateRequest& request,
                                      const ModelBounds& bounds) const;
  void Refuse(absl::Status status, GenerateReactor* reactor);
  absl::Status ValidateTokenize(const v1::TokenizeRequest& request) const;
  // REQUIRES: ValidateTokenize said OK.
  absl::Status DoTokenize(const v1::TokenizeRequest& request,
                          v1::TokenizeResponse* response) const;
  absl::Status DoDetokenize(const v1::DetokenizeRequest& request,
                            v1::DetokenizeResponse* response) const;
  absl::Status DoGetModelInfo(v1::GetModelInfoResponse* response) const;

  Router& router_;
  RequestGate& gate_;
  TextExecutor text_executor_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_INFERENCE_SERVICE_H_
