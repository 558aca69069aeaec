// Messages of worker.proto to the engine's values and back. What comes in is
// checked to the last field: no peer is trusted.
#ifndef BATON_SERVER_CONVERT_H_
#define BATON_SERVER_CONVERT_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "comm/kv_transfer_agent.h"
#include "engine/engine_options.h"
#include "engine/generation_request.h"
#include "kernels/sample.h"
#include "proto/baton/v1/inference.pb.h"
#include "proto/baton/v1/worker.pb.h"

namespace baton {

inline constexpr uint32_t kKvHandleVersion = 2;
inline constexpr size_t kMaxKvHandleBytes = 4 << 20;

// INVALID_ARGUMENT naming the field; a request that is returned passes
// ValidateRequest. The deadline is left to the caller.
absl::StatusOr<GenerationRequest> ToGenerationRequest(
    const v1::PrefillRequest& request, const RequestLimits& limits);
absl::StatusOr<GenerationRequest> ToGenerationRequest(
    const v1::DecodeRequest& request, const RequestLimits& limits);

std::string SerializeKvHandle(const KvHandle& handle);
// INVALID_ARGUMENT naming "kv_handle", or FAILED_PRECONDITION for a version
// that is not known.
absl::StatusOr<KvHandle> ParseKvHandle(const std::string& bytes);

absl::StatusOr<RequestId> ToRequestId(const v1::AbortRequest& request);

// As `top_logprobs` of the messages that have tokens.
v1::TopLogprobs ToProto(std::span<const SampledToken> top);

v1::RankLoad ToProto(const EngineLoad& load);

}  // namespace baton

#endif  // BATON_SERVER_CONVERT_H_
