// The public API: checks what comes in and hands it on.
#ifndef BATON_SERVER_ROUTER_INFERENCE_SERVICE_H_
#define BATON_SERVER_ROUTER_INFERENCE_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "server/edge/request_gate.h"
#include "server/router/generate_reactor.h"
#include "server/router/router.h"

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
  absl::Status Begin(const grpc::CallbackServerContext& context,
                     const v1::GenerateRequest& request,
                     GenerateReactor* reactor);
  absl::Status DoTokenize(const v1::TokenizeRequest& request,
                          v1::TokenizeResponse* response);
  absl::Status DoDetokenize(const v1::DetokenizeRequest& request,
                            v1::DetokenizeResponse* response);
  absl::Status DoGetModelInfo(v1::GetModelInfoResponse* response);

  Router& router_;
  RequestGate& gate_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_INFERENCE_SERVICE_H_
