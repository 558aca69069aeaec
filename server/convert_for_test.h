// A good request and handle for tests to spoil.
#ifndef BATON_SERVER_CONVERT_FOR_TEST_H_
#define BATON_SERVER_CONVERT_FOR_TEST_H_

#include <cstdint>
#include <limits>

#include "proto/baton/v1/kv_handle.pb.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/convert.h"

namespace baton {

inline constexpr uint32_t kMax32 = std::numeric_limits<uint32_t>::max();
inline constexpr uint64_t kMax64 = std::numeric_limits<uint64_t>::max();

inline RequestLimits Limits() {
  return {.vocab_size = 100, .max_context_tokens = 64};
}

inline v1::KvHandle GoodHandle() {
  v1::KvHandle handle;
  handle.set_version(kKvHandleVersion);
  handle.set_fingerprint("f");
  handle.set_export_id(7);
  handle.set_worker_address("address");
  handle.mutable_pool()->set_remote_key("key");
  handle.mutable_pool()->set_base_address(4096);
  handle.mutable_pool()->set_host_id("host");
  handle.mutable_pool()->set_num_blocks(10);
  handle.mutable_pool()->set_block_bytes(640);
  handle.add_blocks()->set_block(9);
  handle.mutable_blocks(0)->set_generation(3);
  handle.set_num_tokens(3);
  return handle;
}

inline v1::DecodeRequest GoodRequest() {
  v1::DecodeRequest decode;
  v1::WorkerRequest& request = *decode.mutable_request();
  request.mutable_id()->set_router_nonce(1);
  request.mutable_id()->set_counter(2);
  request.set_sample_index(3);
  request.set_num_samples(5);
  request.set_attempt(4);
  for (uint32_t token : {5, 6, 99}) request.add_token_ids(token);
  request.set_original_prompt_tokens(2);
  request.mutable_sampling()->set_temperature(0.5);
  request.mutable_sampling()->set_top_p(0.9);
  request.mutable_sampling()->set_top_k(8);
  request.mutable_sampling()->set_min_p(0.1);
  request.mutable_sampling()->set_seed(kMax64);
  request.mutable_sampling()->set_repetition_penalty(1.5);
  request.mutable_sampling()->set_presence_penalty(-2);
  request.mutable_sampling()->set_frequency_penalty(2);
  request.mutable_sampling()->add_logit_bias()->set_token_id(99);
  request.mutable_sampling()->mutable_logit_bias(0)->set_bias(-100);
  request.mutable_sampling()->set_num_top_logprobs(20);
  request.mutable_sampling()->set_logprobs_after_truncation(true);
  request.set_prompt_logprobs_from(1);
  request.set_min_tokens(10);
  request.set_max_tokens(10);
  for (uint32_t token : {1, 2}) request.add_stop_token_ids(token);
  request.set_num_eos_token_ids(1);
  request.set_cache_salt("tenant");
  request.set_bypass_prefix_cache(true);
  decode.set_kv_handle(GoodHandle().SerializeAsString());
  return decode;
}

}  // namespace baton

#endif  // BATON_SERVER_CONVERT_FOR_TEST_H_
