#include "server/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/field_error.h"
#include "engine/cache_spec.h"
#include "proto/baton/v1/kv_handle.pb.h"

namespace baton {
namespace {

constexpr uint32_t kMax32 = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kMax64 = std::numeric_limits<uint64_t>::max();

RequestLimits Limits() { return {.vocab_size = 100, .max_context_tokens = 64}; }

v1::KvHandle GoodHandle() {
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

v1::DecodeRequest GoodRequest() {
  v1::DecodeRequest decode;
  v1::WorkerRequest& request = *decode.mutable_request();
  request.mutable_id()->set_router_nonce(1);
  request.mutable_id()->set_counter(2);
  request.set_sample_index(3);
  request.set_attempt(4);
  for (uint32_t token : {5, 6, 99}) request.add_token_ids(token);
  request.set_original_prompt_tokens(2);
  request.mutable_sampling()->set_temperature(0.5);
  request.mutable_sampling()->set_top_p(0.9);
  request.mutable_sampling()->set_top_k(8);
  request.mutable_sampling()->set_min_p(0.1);
  request.mutable_sampling()->set_seed(kMax64);
  request.set_max_tokens(10);
  for (uint32_t token : {1, 2}) request.add_stop_token_ids(token);
  request.set_num_eos_token_ids(1);
  decode.set_kv_handle(GoodHandle().SerializeAsString());
  return decode;
}

TEST(ConvertTest, AGoodRequestKeepsEveryField) {
  const auto got = ToGenerationRequest(GoodRequest(), Limits());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->id, (RequestId{1, 2}));
  EXPECT_EQ(got->sample_index, 3u);
  EXPECT_EQ(got->attempt, 4u);
  EXPECT_EQ(got->mode, RequestMode::kDecode);
  EXPECT_EQ(got->token_ids, (std::vector<uint32_t>{5, 6, 99}));
  EXPECT_EQ(got->original_prompt_tokens, 2u);
  EXPECT_EQ(got->sampling.temperature, 0.5f);
  EXPECT_EQ(got->sampling.top_p, 0.9f);
  EXPECT_EQ(got->sampling.top_k, 8u);
  EXPECT_EQ(got->sampling.min_p, 0.1f);
  EXPECT_EQ(got->sampling.seed, kMax64);
  EXPECT_EQ(got->max_tokens, 10u);
  EXPECT_EQ(got->stop_token_ids, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(got->deadline, absl::InfiniteFuture());
  ASSERT_TRUE(got->kv_handle.has_value());
  EXPECT_EQ(got->kv_handle->export_id, ExportId(7));
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
  for (const uint32_t bad : {0x80000000u, kMax32}) {
    cases.push_back({"sampling.top_k", [bad](v1::WorkerRequest* r) {
                       r->mutable_sampling()->set_top_k(bad);
                     }});
  }
  return cases;
}

std::vector<BadRequest> BadShapes() {
  return {
      {"request.id", [](v1::WorkerRequest* r) { r->clear_id(); }},
      {"request.id", [](v1::WorkerRequest* r) { r->Clear(); }},
      {"request.sample_index",
       [](v1::WorkerRequest* r) { r->set_sample_index(128); }},
      {"request.sample_index",
       [](v1::WorkerRequest* r) { r->set_sample_index(kMax32); }},
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
      {"stopping.stop_token_ids",
       [](v1::WorkerRequest* r) { r->set_stop_token_ids(1, 100); }},
      {"stopping.stop_token_ids",
       [](v1::WorkerRequest* r) {
         while (r->stop_token_ids_size() < 129) r->add_stop_token_ids(1);
       }},
  };
}

TEST(ConvertTest, EveryBadFieldIsInvalidAndNamed) {
  std::vector<BadRequest> cases = BadNumbers();
  for (const BadRequest& bad : BadShapes()) cases.push_back(bad);
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
  while (request.token_ids_size() < 63) request.add_token_ids(0);
  request.set_original_prompt_tokens(63);
  request.set_max_tokens(kMax32);
  request.mutable_sampling()->set_temperature(100);
  request.mutable_sampling()->set_top_p(1);
  request.mutable_sampling()->set_min_p(1);
  request.mutable_sampling()->set_top_k(0x7fffffff);
  while (request.stop_token_ids_size() < 128) request.add_stop_token_ids(99);
  request.set_num_eos_token_ids(128);
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
  ASSERT_EQ(back->blocks.size(), 2u);
  EXPECT_EQ(back->blocks[0].block, BlockId(2));
  EXPECT_EQ(back->blocks[0].generation, kMax64);
  EXPECT_EQ(back->blocks[1].block, BlockId(0));
}

TEST(ConvertTest, AHandleOfAnotherVersionIsAFailedPrecondition) {
  for (const uint32_t version : {0u, 2u, kMax32}) {
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
  const v1::GetLoadResponse load = ToProto({.running_requests = 1,
                                            .waiting_requests = 2,
                                            .total_blocks = 9,
                                            .free_blocks = 4,
                                            .pending_prefill_tokens = 5});
  EXPECT_EQ(load.running_requests(), 1u);
  EXPECT_EQ(load.waiting_requests(), 2u);
  EXPECT_EQ(load.total_kv_blocks(), 9u);
  EXPECT_EQ(load.free_kv_blocks(), 4u);
  EXPECT_EQ(load.pending_prefill_tokens(), 5u);
}

// ---- random messages
// ----------------------------------------------------------

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

// What every request that is let in must have, stated anew.
void CheckLetIn(const GenerationRequest& r) {
  ASSERT_LE(r.sample_index, kMaxSampleIndex);
  ASSERT_GE(r.token_ids.size(), 1u);
  ASSERT_LT(r.token_ids.size(), 64u);
  for (const uint32_t token : r.token_ids) ASSERT_LT(token, 100u);
  ASSERT_GE(r.original_prompt_tokens, 1u);
  ASSERT_LE(r.original_prompt_tokens, r.token_ids.size());
  ASSERT_GT(r.max_tokens, r.token_ids.size() - r.original_prompt_tokens);
  ASSERT_TRUE(r.sampling.temperature >= 0 && r.sampling.temperature <= 100);
  ASSERT_TRUE(r.sampling.top_p > 0 && r.sampling.top_p <= 1);
  ASSERT_TRUE(r.sampling.min_p >= 0 && r.sampling.min_p <= 1);
  ASSERT_LE(r.stop_token_ids.size(), 128u);
  for (const uint32_t token : r.stop_token_ids) ASSERT_LT(token, 100u);
  ASSERT_EQ(r.kv_handle.has_value(), r.mode == RequestMode::kDecode);
  if (!r.kv_handle.has_value()) return;
  const KvHandle& h = *r.kv_handle;
  ASSERT_EQ(h.blocks.size(), CacheSpec::BlocksFor(h.num_tokens));
  for (const KvBlockRef& ref : h.blocks) {
    ASSERT_LT(ref.block.value(), h.pool_blocks);
  }
  uint64_t end = 0;
  ASSERT_FALSE(__builtin_mul_overflow(h.pool_blocks, h.block_bytes, &end));
  ASSERT_FALSE(__builtin_add_overflow(end, h.base_address, &end));
}

TEST(ConvertTest, AHundredThousandRandomRequestsAreLetInWholeOrRefusedByName) {
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
