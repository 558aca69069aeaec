#include "server/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/field_error.h"
#include "proto/baton/v1/kv_handle.pb.h"
#include "server/convert_for_test.h"

namespace baton {
namespace {

TEST(ConvertTest, AGoodRequestKeepsEveryField) {
  const auto got = ToGenerationRequest(GoodRequest(), Limits());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->id, (RequestId{1, 2}));
  EXPECT_EQ(got->sample_index, 3u);
  EXPECT_EQ(got->num_samples, 5u);
  EXPECT_EQ(got->attempt, 4u);
  EXPECT_EQ(got->mode, RequestMode::kDecode);
  EXPECT_EQ(got->token_ids, (std::vector<uint32_t>{5, 6, 99}));
  EXPECT_EQ(got->original_prompt_tokens, 2u);
  EXPECT_EQ(got->sampling.temperature, 0.5f);
  EXPECT_EQ(got->sampling.top_p, 0.9f);
  EXPECT_EQ(got->sampling.top_k, 8u);
  EXPECT_EQ(got->sampling.min_p, 0.1f);
  EXPECT_EQ(got->sampling.seed, kMax64);
  EXPECT_EQ(got->sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(got->sampling.presence_penalty, -2);
  EXPECT_EQ(got->sampling.frequency_penalty, 2);
  ASSERT_EQ(got->sampling.logit_bias.size(), 1u);
  EXPECT_EQ(got->sampling.logit_bias[0].token_id, 99u);
  EXPECT_EQ(got->sampling.logit_bias[0].bias, -100);
  EXPECT_EQ(got->sampling.num_top_logprobs, 20u);
  EXPECT_TRUE(got->sampling.logprobs_after_truncation);
  EXPECT_EQ(got->prompt_logprobs_from, 1u);
  EXPECT_EQ(got->min_tokens, 10u);
  EXPECT_EQ(got->max_tokens, 10u);
  EXPECT_EQ(got->stop_token_ids, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(got->deadline, absl::InfiniteFuture());
  ASSERT_TRUE(got->kv_handle.has_value());
  EXPECT_EQ(got->kv_handle->export_id, ExportId(7));
  EXPECT_EQ(got->cache_salt, "tenant");
  EXPECT_TRUE(got->bypass_prefix_cache);
}

TEST(ConvertTest, AbsentSamplesAreOneAndAPrefillComputesOne) {
  v1::DecodeRequest decode = GoodRequest();
  v1::PrefillRequest prefill;
  *prefill.mutable_request() = decode.request();
  EXPECT_EQ(ToGenerationRequest(prefill, Limits())->num_samples, 1u);
  prefill.mutable_request()->set_num_samples(126);
  EXPECT_EQ(ErrorField(ToGenerationRequest(prefill, Limits()).status()),
            "request.num_samples");
  decode.mutable_request()->clear_num_samples();
  EXPECT_EQ(ToGenerationRequest(decode, Limits())->num_samples, 1u);
}

TEST(ConvertTest, MoreSamplesThanMayWaitAreRefused) {
  RequestLimits limits = Limits();
  limits.max_samples = 4;
  EXPECT_EQ(ErrorField(ToGenerationRequest(GoodRequest(), limits).status()),
            "num_samples");
}

TEST(ConvertTest, AbsentPenaltiesAndPromptLogprobsAreNone) {
  v1::DecodeRequest decode = GoodRequest();
  decode.mutable_request()->mutable_sampling()->clear_repetition_penalty();
  decode.mutable_request()->clear_prompt_logprobs_from();
  const auto got = ToGenerationRequest(decode, Limits());
  EXPECT_EQ(got->sampling.repetition_penalty, 1);
  EXPECT_FALSE(got->prompt_logprobs_from.has_value());
}

TEST(ConvertTest, WithoutAHandleItGeneratesAndPrefillExports) {
  v1::DecodeRequest decode = GoodRequest();
  decode.clear_kv_handle();
  EXPECT_EQ(ToGenerationRequest(decode, Limits())->mode,
            RequestMode::kGenerate);
  v1::PrefillRequest prefill;
  *prefill.mutable_request() = decode.request();
  EXPECT_EQ(ToGenerationRequest(prefill, Limits())->mode,
            RequestMode::kPrefill);
}

struct BadRequest {
  const char* field;
  std::function<void(v1::WorkerRequest*)> spoil;
};

std::vector<BadRequest> BadNumbers() {
  std::vector<BadRequest> cases;
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad :
       {-1.f, -0.001f, nan, -nan, inf, -inf, 1e-45f, 101.f, 3.4e38f}) {
    cases.push_back({"sampling.temperature", [bad](v1::WorkerRequest* r) {
                       r->mutable_sampling()->set_temperature(bad);
                     }});
  }
  for (const float bad :
       {0.f, -0.f, -1.f, nan, inf, -inf, 1e-45f, 1.0001f, 3.4e38f}) {
    cases.push_back({"sampling.top_p", [bad](v1::WorkerRequest* r) {
                       r->mutable_sampling()->set_top_p(bad);
                     }});
  }
  for (const float bad : {-1.f, nan, inf, -inf, 1e-45f, 1.0001f, 3.4e38f}) {
    cases.push_back({"sampling.min_p", [bad](v1::WorkerRequest* r) {
                       r->mutable_sampling()->set_min_p(bad);
                     }});
  }
  for (const float bad :
       {-1.f, 0.f, 0.009f, nan, inf, -inf, 1e-45f, 101.f, 3.4e38f}) {
    cases.push_back({"sampling.repetition_penalty", [bad](auto* r) {
                       r->mutable_sampling()->set_repetition_penalty(bad);
                     }});
  }
  for (const float bad : {-2.1f, 2.1f, nan, inf, -inf, 1e-45f, 3.4e38f}) {
    cases.push_back({"sampling.presence_penalty", [bad](auto* r) {
                       r->mutable_sampling()->set_presence_penalty(bad);
                     }});
    cases.push_back({"sampling.frequency_penalty", [bad](auto* r) {
                       r->mutable_sampling()->set_frequency_penalty(bad);
                     }});
    cases.push_back({"sampling.logit_bias", [bad](auto* r) {
                       r->mutable_sampling()->add_logit_bias()->set_bias(bad *
                                                                         50);
                     }});
  }
  for (const uint32_t bad : {0x80000000u, kMax32}) {
    cases.push_back({"sampling.top_k", [bad](v1::WorkerRequest* r) {
                       r->mutable_sampling()->set_top_k(bad);
                     }});
  }
  return cases;
}

std::vector<BadRequest> BadBiases() {
  return {
      {"sampling.logit_bias",
       [](auto* r) {
         r->mutable_sampling()->add_logit_bias()->set_token_id(100);
       }},
      {"sampling.logit_bias",
       [](auto* r) {
         r->mutable_sampling()->add_logit_bias()->set_token_id(7);
         r->mutable_sampling()->add_logit_bias()->set_token_id(7);
       }},
      {"sampling.logit_bias",
       [](auto* r) {
         for (uint32_t i = 0; i < 1025; ++i) {
           r->mutable_sampling()->add_logit_bias()->set_token_id(i);
         }
       }},
  };
}

std::vector<BadRequest> BadShapes() {
  return {
      {"request.id", [](v1::WorkerRequest* r) { r->clear_id(); }},
      {"request.id", [](v1::WorkerRequest* r) { r->Clear(); }},
      {"request.sample_index",
       [](v1::WorkerRequest* r) { r->set_sample_index(128); }},
      {"request.sample_index",
       [](v1::WorkerRequest* r) { r->set_sample_index(kMax32); }},
      {"request.num_samples",
       [](v1::WorkerRequest* r) { r->set_num_samples(0); }},
      {"request.num_samples",
       [](v1::WorkerRequest* r) { r->set_num_samples(126); }},
      {"request.num_samples",
       [](v1::WorkerRequest* r) { r->set_num_samples(kMax32); }},
      {"sampling", [](v1::WorkerRequest* r) { r->clear_sampling(); }},
      {"request.num_eos_token_ids",
       [](v1::WorkerRequest* r) { r->set_num_eos_token_ids(3); }},
      {"prompt", [](v1::WorkerRequest* r) { r->clear_token_ids(); }},
      {"prompt", [](v1::WorkerRequest* r) { r->set_token_ids(1, 100); }},
      {"prompt", [](v1::WorkerRequest* r) { r->set_token_ids(0, kMax32); }},
      {"prompt",
       [](v1::WorkerRequest* r) {
         while (r->token_ids_size() < 64) r->add_token_ids(1);
       }},
      {"original_prompt_tokens",
       [](v1::WorkerRequest* r) { r->set_original_prompt_tokens(0); }},
      {"original_prompt_tokens",
       [](v1::WorkerRequest* r) { r->set_original_prompt_tokens(4); }},
      {"original_prompt_tokens",
       [](v1::WorkerRequest* r) { r->set_original_prompt_tokens(kMax32); }},
      {"stopping.max_tokens",
       [](v1::WorkerRequest* r) { r->set_max_tokens(0); }},
      {"stopping.max_tokens",
       [](v1::WorkerRequest* r) { r->set_max_tokens(1); }},
      {"stopping.min_tokens",
       [](v1::WorkerRequest* r) { r->set_min_tokens(11); }},
      {"stopping.min_tokens",
       [](v1::WorkerRequest* r) { r->set_min_tokens(kMax32); }},
      {"logprobs.prompt_from",
       [](v1::WorkerRequest* r) { r->set_prompt_logprobs_from(2); }},
      {"logprobs.prompt_from",
       [](v1::WorkerRequest* r) { r->set_prompt_logprobs_from(kMax32); }},
      {"logprobs.top",
       [](auto* r) { r->mutable_sampling()->set_num_top_logprobs(21); }},
      {"logprobs.top",
       [](auto* r) { r->mutable_sampling()->set_num_top_logprobs(kMax32); }},
      {"stopping.stop_token_ids",
       [](v1::WorkerRequest* r) { r->set_stop_token_ids(1, 100); }},
      {"stopping.stop_token_ids",
       [](v1::WorkerRequest* r) {
         while (r->stop_token_ids_size() < 129) r->add_stop_token_ids(1);
       }},
      {"cache.salt",
       [](v1::WorkerRequest* r) { r->set_cache_salt(std::string(129, 's')); }},
  };
}

TEST(ConvertTest, EveryBadFieldIsInvalidAndNamed) {
  std::vector<BadRequest> cases = BadNumbers();
  for (const BadRequest& bad : BadShapes()) cases.push_back(bad);
  for (const BadRequest& bad : BadBiases()) cases.push_back(bad);
  int index = 0;
  for (const BadRequest& bad : cases) {
    v1::DecodeRequest request = GoodRequest();
    bad.spoil(request.mutable_request());
    const absl::Status status = ToGenerationRequest(request, Limits()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << index << bad.field;
    EXPECT_EQ(ErrorField(status), bad.field) << index << status;
    ++index;
  }
}

TEST(ConvertTest, TheLimitsThemselvesAreGood) {
  v1::DecodeRequest decode = GoodRequest();
  decode.clear_kv_handle();
  v1::WorkerRequest& request = *decode.mutable_request();
  request.set_sample_index(127);
  request.set_num_samples(1);
  while (request.token_ids_size() < 63) request.add_token_ids(0);
  request.set_original_prompt_tokens(63);
  request.set_prompt_logprobs_from(62);
  request.set_min_tokens(kMax32);
  request.set_max_tokens(kMax32);
  request.mutable_sampling()->set_temperature(100);
  request.mutable_sampling()->set_top_p(1);
  request.mutable_sampling()->set_min_p(1);
  request.mutable_sampling()->set_top_k(0x7fffffff);
  while (request.stop_token_ids_size() < 128) request.add_stop_token_ids(99);
  request.set_cache_salt(std::string(128, 's'));
  request.set_num_eos_token_ids(128);
  EXPECT_TRUE(ToGenerationRequest(decode, Limits()).ok());
  request.set_sample_index(0);
  request.set_num_samples(128);
  EXPECT_TRUE(ToGenerationRequest(decode, Limits()).ok());
}

TEST(ConvertTest, AHandleSurvivesItsJourney) {
  KvHandle handle;
  handle.fingerprint = "numerics 1";
  handle.export_id = ExportId(kMax64);
  handle.worker_address = std::string("\0\xff", 2);
  handle.remote_key = "key";
  handle.base_address = 1 << 20;
  handle.host_id = "host";
  handle.pool_blocks = 3;
  handle.block_bytes = 1280;
  handle.blocks = {{BlockId(2), kMax64}, {BlockId(0), 1}};
  handle.num_tokens = 65;
  handle.prefix_key = {.high = kMax64, .low = 5};
  const auto back = ParseKvHandle(SerializeKvHandle(handle));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->fingerprint, handle.fingerprint);
  EXPECT_EQ(back->export_id, handle.export_id);
  EXPECT_EQ(back->worker_address, handle.worker_address);
  EXPECT_EQ(back->remote_key, handle.remote_key);
  EXPECT_EQ(back->base_address, handle.base_address);
  EXPECT_EQ(back->host_id, handle.host_id);
  EXPECT_EQ(back->pool_blocks, handle.pool_blocks);
  EXPECT_EQ(back->block_bytes, handle.block_bytes);
  EXPECT_EQ(back->num_tokens, handle.num_tokens);
  EXPECT_EQ(back->prefix_key, handle.prefix_key);
  ASSERT_EQ(back->blocks.size(), 2u);
  EXPECT_EQ(back->blocks[0].block, BlockId(2));
  EXPECT_EQ(back->blocks[0].generation, kMax64);
  EXPECT_EQ(back->blocks[1].block, BlockId(0));
}

TEST(ConvertTest, AHandleOfAnotherVersionIsAFailedPrecondition) {
  for (const uint32_t version : {0u, 1u, 3u, kMax32}) {
    v1::KvHandle handle = GoodHandle();
    handle.set_version(version);
    EXPECT_TRUE(absl::IsFailedPrecondition(
        ParseKvHandle(handle.SerializeAsString()).status()));
  }
}

TEST(ConvertTest, EveryBadHandleIsInvalid) {
  const std::vector<std::function<void(v1::KvHandle*)>> cases = {
      [](auto* h) { h->clear_worker_address(); },
      [](auto* h) { h->set_worker_address(std::string(16385, 'a')); },
      [](auto* h) { h->set_fingerprint(std::string(1025, 'a')); },
      [](auto* h) { h->clear_pool(); },
      [](auto* h) { h->mutable_pool()->set_num_blocks(0); },
      [](auto* h) { h->mutable_pool()->set_num_blocks(9); },
      [](auto* h) { h->mutable_pool()->set_num_blocks(1ull << 32); },
      [](auto* h) { h->mutable_pool()->set_num_blocks(kMax64); },
      [](auto* h) { h->mutable_pool()->set_block_bytes(0); },
      [](auto* h) { h->mutable_pool()->set_block_bytes(kMax64); },
      [](auto* h) { h->mutable_pool()->set_block_bytes(kMax64 / 10); },
      [](auto* h) { h->mutable_pool()->set_base_address(kMax64); },
      [](auto* h) { h->mutable_pool()->set_base_address(kMax64 - 6400); },
      [](auto* h) {
        h->mutable_pool()->set_remote_key(std::string(16385, 'a'));
      },
      [](auto* h) { h->mutable_pool()->set_host_id(std::string(1025, 'a')); },
      [](auto* h) { h->clear_blocks(); },
      [](auto* h) { h->add_blocks(); },
      [](auto* h) { h->mutable_blocks(0)->set_block(10); },
      [](auto* h) { h->mutable_blocks(0)->set_block(kMax32); },
      [](auto* h) { h->set_num_tokens(0); },
      [](auto* h) { h->set_num_tokens(65); },
      [](auto* h) { h->set_num_tokens(kMax32); },
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    v1::DecodeRequest request = GoodRequest();
    v1::KvHandle handle = GoodHandle();
    cases[i](&handle);
    request.set_kv_handle(handle.SerializeAsString());
    const absl::Status status = ToGenerationRequest(request, Limits()).status();
    EXPECT_EQ(ErrorField(status), "kv_handle") << i << status;
  }
}

TEST(ConvertTest, BytesThatAreNoHandleAreInvalid) {
  for (const std::string& bytes :
       {std::string("\xff\xff\xff"), std::string("\x0a\x7f"),
        std::string(kMaxKvHandleBytes + 1, '\0')}) {
    EXPECT_EQ(ErrorField(ParseKvHandle(bytes).status()), "kv_handle");
  }
}

TEST(ConvertTest, AnAbortWithoutAnIdIsInvalid) {
  EXPECT_EQ(ErrorField(ToRequestId(v1::AbortRequest()).status()), "request.id");
}

TEST(ConvertTest, TheLoadIsTheEnginesLoad) {
  const v1::RankLoad load = ToProto({.running_requests = 1,
                                     .waiting_requests = 2,
                                     .total_blocks = 9,
                                     .free_blocks = 4,
                                     .exported_blocks = 3,
                                     .importing_blocks = 2,
                                     .pending_prefill_tokens = 5,
                                     .steps = {.prefill_steps = 6,
                                               .decode_steps = 7,
                                               .prefill_rows = 80,
                                               .tokens = 90}});
  EXPECT_EQ(load.running_requests(), 1u);
  EXPECT_EQ(load.waiting_requests(), 2u);
  EXPECT_EQ(load.total_kv_blocks(), 9u);
  EXPECT_EQ(load.free_kv_blocks(), 4u);
  EXPECT_EQ(load.pending_prefill_tokens(), 5u);
  EXPECT_EQ(load.exported_kv_blocks(), 3u);
  EXPECT_EQ(load.importing_kv_blocks(), 2u);
  EXPECT_EQ(load.prefill_steps(), 6u);
  EXPECT_EQ(load.decode_steps(), 7u);
  EXPECT_EQ(load.computed_prompt_tokens(), 80u);
  EXPECT_EQ(load.drawn_tokens(), 90u);
}

}  // namespace
}  // namespace baton
