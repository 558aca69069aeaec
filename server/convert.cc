#include "server/convert.h"

#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "engine/cache_spec.h"
#include "proto/baton/v1/kv_handle.pb.h"
#include "server/edge/request_size.h"

namespace baton {
namespace {

// Far above what any transport makes.
constexpr size_t kMaxAddressBytes = 16384;
constexpr size_t kMaxNameBytes = 1024;

absl::StatusOr<RequestId> ToRequestId(bool present, const v1::RequestId& id) {
  if (!present) return FieldError("request.id", "is missing");
  return RequestId{.router_nonce = id.router_nonce(), .counter = id.counter()};
}

absl::StatusOr<SamplingParams> ToSamplingParams(const v1::WorkerSampling& in) {
  if (in.logit_bias_size() > static_cast<int>(kMaxLogitBiases)) {
    return FieldError("sampling.logit_bias",
                      absl::StrCat("at most ", kMaxLogitBiases, " ids"));
  }
  SamplingParams out = {
      .temperature = in.temperature(),
      .top_p = in.top_p(),
      .min_p = in.min_p(),
      .top_k = in.top_k(),
      .seed = in.seed(),
      .presence_penalty = in.presence_penalty(),
      .frequency_penalty = in.frequency_penalty(),
      .num_top_logprobs = in.num_top_logprobs(),
      .logprobs_after_truncation = in.logprobs_after_truncation()};
  if (in.has_repetition_penalty()) {
    out.repetition_penalty = in.repetition_penalty();
  }
  for (const v1::LogitBias& bias : in.logit_bias()) {
    out.logit_bias.push_back(
        {.token_id = bias.token_id(), .bias = bias.bias()});
  }
  return out;
}

absl::Status SetSamples(const v1::WorkerRequest& request, RequestMode mode,
                        GenerationRequest* out) {
  if (request.sample_index() >= kMaxSamples) {
    return FieldError("request.sample_index",
                      absl::StrCat("must be 0 .. ", kMaxSamples - 1));
  }
  out->sample_index = request.sample_index();
  if (!request.has_num_samples()) return absl::OkStatus();
  const uint32_t most = kMaxSamples - request.sample_index();
  if (request.num_samples() == 0 || request.num_samples() > most) {
    return FieldError("request.num_samples",
                      absl::StrCat("must be 1 .. ", most, " from sample ",
                                   request.sample_index(), " on"));
  }
  if (mode != RequestMode::kPrefill) out->num_samples = request.num_samples();
  return absl::OkStatus();
}

absl::StatusOr<GenerationRequest> ToGenerationRequest(
    const v1::WorkerRequest& request, RequestMode mode,
    const RequestLimits& limits) {
  GenerationRequest out;
  ASSIGN_OR_RETURN(out.id, ToRequestId(request.has_id(), request.id()));
  RETURN_IF_ERROR(SetSamples(request, mode, &out));
  if (!request.has_sampling()) return FieldError("sampling", "is missing");
  if (request.num_eos_token_ids() >
      static_cast<uint32_t>(request.stop_token_ids_size())) {
    return FieldError("request.num_eos_token_ids",
                      "is more than there are stop_token_ids");
  }
  out.attempt = request.attempt();
  out.mode = mode;
  out.token_ids.assign(request.token_ids().begin(), request.token_ids().end());
  out.original_prompt_tokens = request.original_prompt_tokens();
  ASSIGN_OR_RETURN(out.sampling, ToSamplingParams(request.sampling()));
  out.max_tokens = request.max_tokens();
  out.min_tokens = request.min_tokens();
  if (request.has_prompt_logprobs_from()) {
    out.prompt_logprobs_from = request.prompt_logprobs_from();
  }
  out.stop_token_ids.assign(request.stop_token_ids().begin(),
                            request.stop_token_ids().end());
  out.cache_salt = request.cache_salt();
  out.bypass_prefix_cache = request.bypass_prefix_cache();
  RETURN_IF_ERROR(ValidateRequest(out, limits));
  return out;
}

absl::Status CheckPool(const v1::PoolDescriptor& pool) {
  if (pool.num_blocks() == 0 ||
      pool.num_blocks() > std::numeric_limits<uint32_t>::max() ||
      pool.block_bytes() == 0 ||
      pool.block_bytes() >
          (std::numeric_limits<uint64_t>::max() - pool.base_address()) /
              (pool.num_blocks() + 1)) {
    return FieldError("kv_handle", "describes no pool");
  }
  if (pool.remote_key().size() > kMaxAddressBytes ||
      pool.host_id().size() > kMaxNameBytes) {
    return FieldError("kv_handle", "has a name that is too long");
  }
  return absl::OkStatus();
}

absl::Status CheckBlocks(const v1::KvHandle& handle) {
  if (handle.num_tokens() == 0 ||
      CacheSpec::BlocksFor(handle.num_tokens()) !=
          static_cast<uint64_t>(handle.blocks_size())) {
    return FieldError("kv_handle",
                      absl::StrCat("has ", handle.blocks_size(), " blocks for ",
                                   handle.num_tokens(), " tokens"));
  }
  for (const v1::BlockDescriptor& block : handle.blocks()) {
    if (block.block() >= handle.pool().num_blocks()) {
      return FieldError("kv_handle", "names a block outside of its pool");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationRequest> ToGenerationRequest(
    const v1::PrefillRequest& request, const RequestLimits& limits) {
  return ToGenerationRequest(request.request(), RequestMode::kPrefill, limits);
}

absl::StatusOr<GenerationRequest> ToGenerationRequest(
    const v1::DecodeRequest& request, const RequestLimits& limits) {
  ASSIGN_OR_RETURN(
      GenerationRequest out,
      ToGenerationRequest(request.request(),
                          request.has_kv_handle() ? RequestMode::kDecode
                                                  : RequestMode::kGenerate,
                          limits));
  if (request.has_kv_handle()) {
    ASSIGN_OR_RETURN(out.kv_handle, ParseKvHandle(request.kv_handle()));
  }
  return out;
}

std::string SerializeKvHandle(const KvHandle& handle) {
  v1::KvHandle proto;
  proto.set_version(kKvHandleVersion);
  proto.set_fingerprint(handle.fingerprint);
  proto.set_export_id(handle.export_id.value());
  proto.set_worker_address(handle.worker_address);
  v1::PoolDescriptor* pool = proto.mutable_pool();
  pool->set_remote_key(handle.remote_key);
  pool->set_base_address(handle.base_address);
  pool->set_host_id(handle.host_id);
  pool->set_num_blocks(handle.pool_blocks);
  pool->set_block_bytes(handle.block_bytes);
  for (const KvBlockRef& ref : handle.blocks) {
    v1::BlockDescriptor* block = proto.add_blocks();
    block->set_block(ref.block.value());
    block->set_generation(ref.generation);
  }
  proto.set_num_tokens(handle.num_tokens);
  proto.set_prefix_key_high(handle.prefix_key.high);
  proto.set_prefix_key_low(handle.prefix_key.low);
  return proto.SerializeAsString();
}

absl::StatusOr<KvHandle> ParseKvHandle(const std::string& bytes) {
  if (bytes.size() > kMaxKvHandleBytes) {
    return FieldError("kv_handle", "is too long");
  }
  v1::KvHandle proto;
  if (!proto.ParseFromString(bytes)) {
    return FieldError("kv_handle", "cannot be read");
  }
  if (proto.version() != kKvHandleVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("kv_handle: version ", proto.version(),
                     " is not known here; ", kKvHandleVersion, " is"));
  }
  if (proto.worker_address().empty() ||
      proto.worker_address().size() > kMaxAddressBytes ||
      proto.fingerprint().size() > kMaxNameBytes) {
    return FieldError("kv_handle", "has no address, or too long a name");
  }
  RETURN_IF_ERROR(CheckPool(proto.pool()));
  RETURN_IF_ERROR(CheckBlocks(proto));
  KvHandle out;
  out.fingerprint = proto.fingerprint();
  out.export_id = ExportId(proto.export_id());
  out.worker_address = proto.worker_address();
  out.remote_key = proto.pool().remote_key();
  out.base_address = proto.pool().base_address();
  out.host_id = proto.pool().host_id();
  out.pool_blocks = proto.pool().num_blocks();
  out.block_bytes = proto.pool().block_bytes();
  out.blocks.reserve(proto.blocks_size());
  for (const v1::BlockDescriptor& block : proto.blocks()) {
    out.blocks.push_back({BlockId(block.block()), block.generation()});
  }
  out.num_tokens = proto.num_tokens();
  out.prefix_key = {.high = proto.prefix_key_high(),
                    .low = proto.prefix_key_low()};
  return out;
}

absl::StatusOr<RequestId> ToRequestId(const v1::AbortRequest& request) {
  return ToRequestId(request.has_id(), request.id());
}

v1::TopLogprobs ToProto(std::span<const SampledToken> top) {
  v1::TopLogprobs out;
  for (const SampledToken& token : top) {
    out.add_token_ids(token.token_id);
    out.add_logprobs(token.logprob);
  }
  return out;
}

v1::RankLoad ToProto(const EngineLoad& load) {
  v1::RankLoad out;
  out.set_running_requests(load.running_requests);
  out.set_waiting_requests(load.waiting_requests);
  out.set_free_kv_blocks(load.free_blocks);
  out.set_total_kv_blocks(load.total_blocks);
  out.set_pending_prefill_tokens(load.pending_prefill_tokens);
  out.set_exported_kv_blocks(load.exported_blocks);
  out.set_importing_kv_blocks(load.importing_blocks);
  out.set_prefill_steps(load.steps.prefill_steps);
  out.set_decode_steps(load.steps.decode_steps);
  out.set_computed_prompt_tokens(load.steps.prefill_rows);
  out.set_drawn_tokens(load.steps.tokens);
  out.set_paused_requests(load.paused_requests);
  return out;
}

}  // namespace baton
