// Random messages, whole and spoiled, of whoever may reach a worker's port.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "base/field_error.h"
#include "engine/cache_spec.h"
#include "proto/baton/v1/kv_handle.pb.h"
#include "server/convert.h"
#include "server/convert_for_test.h"
#include "server/edge/request_size.h"

namespace baton {
namespace {

class Fuzz {
 public:
  explicit Fuzz(uint32_t seed) : random_(seed) {}

  uint64_t Number() {
    static constexpr uint64_t kEdges[] = {
        0,   1,   2,    63,         64,     65,         99,         100,
        127, 128, 1000, 0x7fffffff, kMax32, 1ull << 32, 1ull << 63, kMax64};
    if (random_() % 2 == 0) return kEdges[random_() % std::size(kEdges)];
    return random_() % 100;
  }
  float Float() {
    static const float kEdges[] = {0.f,
                                   -0.f,
                                   1.f,
                                   -1.f,
                                   0.5f,
                                   1e-45f,
                                   1e-30f,
                                   100.f,
                                   101.f,
                                   3.4e38f,
                                   -3.4e38f,
                                   std::numeric_limits<float>::infinity(),
                                   -std::numeric_limits<float>::infinity(),
                                   std::numeric_limits<float>::quiet_NaN()};
    if (random_() % 2 == 0) return kEdges[random_() % std::size(kEdges)];
    return static_cast<float>(random_() % 1000) / 1000;
  }
  bool Rarely() { return random_() % 8 == 0; }
  size_t Index(size_t size) { return random_() % size; }

  // Spoils some of a good request, or keeps it.
  v1::DecodeRequest Request() {
    v1::DecodeRequest decode = GoodRequest();
    v1::WorkerRequest& r = *decode.mutable_request();
    if (Rarely()) r.clear_id();
    if (Rarely()) r.set_sample_index(static_cast<uint32_t>(Number()));
    if (Rarely()) r.set_num_samples(static_cast<uint32_t>(Number()));
    if (Rarely()) r.set_attempt(static_cast<uint32_t>(Number()));
    if (Rarely()) r.clear_token_ids();
    while (Rarely()) r.add_token_ids(static_cast<uint32_t>(Number()));
    if (Rarely()) r.set_original_prompt_tokens(static_cast<uint32_t>(Number()));
    if (Rarely()) r.clear_sampling();
    if (Rarely()) r.mutable_sampling()->set_temperature(Float());
    if (Rarely()) r.mutable_sampling()->set_top_p(Float());
    if (Rarely()) r.mutable_sampling()->set_min_p(Float());
    if (Rarely()) {
      r.mutable_sampling()->set_top_k(static_cast<uint32_t>(Number()));
    }
    if (Rarely()) r.mutable_sampling()->set_repetition_penalty(Float());
    if (Rarely()) r.mutable_sampling()->set_presence_penalty(Float());
    if (Rarely()) r.mutable_sampling()->set_frequency_penalty(Float());
    while (Rarely()) {
      v1::LogitBias* bias = r.mutable_sampling()->add_logit_bias();
      bias->set_token_id(static_cast<uint32_t>(Number()));
      bias->set_bias(Float());
    }
    if (Rarely()) {
      r.mutable_sampling()->set_num_top_logprobs(
          static_cast<uint32_t>(Number()));
    }
    if (Rarely()) r.set_prompt_logprobs_from(static_cast<uint32_t>(Number()));
    if (Rarely()) r.set_min_tokens(static_cast<uint32_t>(Number()));
    if (Rarely()) r.set_max_tokens(static_cast<uint32_t>(Number()));
    while (Rarely()) r.add_stop_token_ids(static_cast<uint32_t>(Number()));
    if (Rarely()) r.set_num_eos_token_ids(static_cast<uint32_t>(Number()));
    if (Rarely()) SpoilHandle(&decode);
    return decode;
  }

  // One bit of the serialised message, or its end.
  std::string Bytes(const v1::DecodeRequest& request) {
    std::string bytes = request.SerializeAsString();
    if (Rarely()) bytes.resize(Index(bytes.size() + 1));
    if (Rarely() && !bytes.empty()) {
      bytes[Index(bytes.size())] ^= static_cast<char>(1 << Index(8));
    }
    return bytes;
  }

 private:
  void SpoilHandle(v1::DecodeRequest* decode) {
    v1::KvHandle h = GoodHandle();
    if (Rarely()) h.set_version(static_cast<uint32_t>(Number()));
    if (Rarely()) h.mutable_pool()->set_num_blocks(Number());
    if (Rarely()) h.mutable_pool()->set_block_bytes(Number());
    if (Rarely()) h.mutable_pool()->set_base_address(Number());
    if (Rarely()) h.set_num_tokens(static_cast<uint32_t>(Number()));
    while (Rarely()) h.add_blocks()->set_block(static_cast<uint32_t>(Number()));
    decode->set_kv_handle(h.SerializeAsString());
    if (Rarely()) decode->clear_kv_handle();
  }

  std::mt19937 random_;
};

void CheckPenaltiesLetIn(const SamplingParams& s) {
  ASSERT_TRUE(s.repetition_penalty >= 0.01f && s.repetition_penalty <= 100);
  ASSERT_TRUE(s.presence_penalty >= -2 && s.presence_penalty <= 2);
  ASSERT_TRUE(s.frequency_penalty >= -2 && s.frequency_penalty <= 2);
  for (const LogitBias& bias : s.logit_bias) {
    ASSERT_LT(bias.token_id, 100u);
    ASSERT_TRUE(bias.bias >= -100 && bias.bias <= 100);
  }
}

void CheckHandleLetIn(const KvHandle& h) {
  ASSERT_EQ(h.blocks.size(), CacheSpec::BlocksFor(h.num_tokens));
  for (const KvBlockRef& ref : h.blocks) {
    ASSERT_LT(ref.block.value(), h.pool_blocks);
  }
  uint64_t end = 0;
  ASSERT_FALSE(__builtin_mul_overflow(h.pool_blocks, h.block_bytes, &end));
  ASSERT_FALSE(__builtin_add_overflow(end, h.base_address, &end));
}

// What every request that is let in must have, stated anew.
void CheckLetIn(const GenerationRequest& r) {
  ASSERT_LT(r.sample_index, kMaxSamples);
  ASSERT_GE(r.num_samples, 1u);
  ASSERT_LE(r.num_samples, 128 - r.sample_index);
  ASSERT_GE(r.token_ids.size(), 1u);
  ASSERT_LT(r.token_ids.size(), 64u);
  for (const uint32_t token : r.token_ids) ASSERT_LT(token, 100u);
  ASSERT_GE(r.original_prompt_tokens, 1u);
  ASSERT_LE(r.original_prompt_tokens, r.token_ids.size());
  ASSERT_GT(r.max_tokens, r.token_ids.size() - r.original_prompt_tokens);
  ASSERT_TRUE(r.sampling.temperature >= 0 && r.sampling.temperature <= 100);
  ASSERT_TRUE(r.sampling.top_p > 0 && r.sampling.top_p <= 1);
  ASSERT_TRUE(r.sampling.min_p >= 0 && r.sampling.min_p <= 1);
  CheckPenaltiesLetIn(r.sampling);
  ASSERT_LE(r.sampling.num_top_logprobs, 20u);
  ASSERT_LT(r.prompt_logprobs_from.value_or(0), r.original_prompt_tokens);
  ASSERT_LE(r.min_tokens, r.max_tokens);
  ASSERT_LE(r.stop_token_ids.size(), 128u);
  for (const uint32_t token : r.stop_token_ids) ASSERT_LT(token, 100u);
  ASSERT_EQ(r.kv_handle.has_value(), r.mode == RequestMode::kDecode);
  if (r.kv_handle.has_value()) CheckHandleLetIn(*r.kv_handle);
}

TEST(ConvertFuzzTest,
     AHundredThousandRandomRequestsAreLetInWholeOrRefusedByName) {
  constexpr uint32_t kSeed = 20240229;
  SCOPED_TRACE(kSeed);
  Fuzz fuzz(kSeed);
  int let_in = 0;
  int refused = 0;
  for (int i = 0; i < 100'000; ++i) {
    v1::DecodeRequest request;
    if (!request.ParseFromString(fuzz.Bytes(fuzz.Request()))) continue;
    const auto got = ToGenerationRequest(request, Limits());
    if (got.ok()) {
      ++let_in;
      CheckLetIn(*got);
      if (HasFatalFailure()) return;
      continue;
    }
    ++refused;
    if (absl::IsFailedPrecondition(got.status())) continue;  // The version.
    ASSERT_TRUE(absl::IsInvalidArgument(got.status())) << got.status();
    ASSERT_TRUE(ErrorField(got.status()).has_value()) << got.status();
  }
  EXPECT_GT(let_in, 10'000);
  EXPECT_GT(refused, 10'000);
}

}  // namespace
}  // namespace baton
