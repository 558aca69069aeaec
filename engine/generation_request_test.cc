#include "engine/generation_request.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/field_error.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr RequestLimits kLimits = {.vocab_size = 100, .max_context_tokens = 16};

GenerationRequest Valid() {
  GenerationRequest request;
  request.token_ids = {1, 2, 3};
  request.original_prompt_tokens = 3;
  request.max_tokens = 4;
  return request;
}

std::string FieldOf(const GenerationRequest& request) {
  const absl::Status status = ValidateRequest(request, kLimits);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return ErrorField(status).value_or("none");
}

TEST(ValidateRequestTest, PromptsLeaveRoomForOneTokenInTheContext) {
  GenerationRequest request = Valid();
  for (size_t length : {0, 1, 15, 16, 17, 160}) {
    request.token_ids.assign(length, 1);
    request.original_prompt_tokens = static_cast<uint32_t>(length);
    EXPECT_EQ(FieldOf(request), length == 1 || length == 15 ? "" : "prompt");
  }
}

TEST(ValidateRequestTest, TokensAreBelowTheVocabulary) {
  for (uint32_t token : {99u, 100u, 1u << 31, ~0u}) {
    GenerationRequest prompt = Valid();
    prompt.token_ids[1] = token;
    EXPECT_EQ(FieldOf(prompt), token == 99 ? "" : "prompt");
    GenerationRequest stop = Valid();
    stop.stop_token_ids = {token};
    EXPECT_EQ(FieldOf(stop), token == 99 ? "" : "stopping.stop_token_ids");
  }
}

TEST(ValidateRequestTest, SamplesAreFewAndMoveNoKv) {
  GenerationRequest request = Valid();
  for (uint32_t samples : {0u, 1u, 128u, 129u, ~0u}) {
    request.num_samples = samples;
    const bool fits = samples >= 1 && samples <= kLimits.max_samples;
    EXPECT_EQ(FieldOf(request), fits ? "" : "num_samples");
  }
  request.num_samples = 2;
  request.sample_index = ~0u;
  EXPECT_EQ(FieldOf(request), "sample_index");
  request.sample_index = 7;
  EXPECT_EQ(FieldOf(request), "");
  request.mode = RequestMode::kPrefill;
  EXPECT_EQ(FieldOf(request), "num_samples");
  request.mode = RequestMode::kDecode;
  EXPECT_EQ(FieldOf(request), "");
  request.kv_handle.emplace();
  EXPECT_EQ(FieldOf(request), "num_samples");
}

TEST(ValidateRequestTest, TheOriginalPromptIsAPartOfTheTokens) {
  GenerationRequest request = Valid();
  for (uint32_t original : {0u, 4u, ~0u}) {
    request.original_prompt_tokens = original;
    EXPECT_EQ(FieldOf(request), "original_prompt_tokens");
  }
}

TEST(ValidateRequestTest, MaxTokensIsAboveWhatIsResumed) {
  GenerationRequest request = Valid();
  request.original_prompt_tokens = 1;
  for (uint32_t max_tokens : {0u, 2u, 3u, ~0u}) {
    request.max_tokens = max_tokens;
    EXPECT_EQ(FieldOf(request), max_tokens > 2 ? "" : "stopping.max_tokens");
  }
}

TEST(ValidateRequestTest, StopIdsAreLimitedInNumber) {
  GenerationRequest request = Valid();
  request.stop_token_ids.assign(kLimits.max_stop_token_ids, 1);
  EXPECT_EQ(FieldOf(request), "");
  request.stop_token_ids.push_back(1);
  EXPECT_EQ(FieldOf(request), "stopping.stop_token_ids");
}

TEST(ValidateRequestTest, NoNumberOutOfRangePasses) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
  for (float bad : {-1.0f, kNan, kInf, -kInf, kDenormal, 3e38f}) {
    GenerationRequest request = Valid();
    request.sampling.temperature = bad;
    EXPECT_EQ(FieldOf(request), "sampling.temperature") << bad;
    request = Valid();
    request.sampling.top_p = bad;
    EXPECT_EQ(FieldOf(request), "sampling.top_p") << bad;
    request = Valid();
    request.sampling.min_p = bad;
    EXPECT_EQ(FieldOf(request), "sampling.min_p") << bad;
  }
  GenerationRequest request = Valid();
  request.sampling = {.temperature = 0, .top_p = 1, .min_p = 0};
  request.sampling.top_k = 0x7fffffff;
  EXPECT_EQ(FieldOf(request), "");
  request.sampling.top_k = 0x80000000;
  EXPECT_EQ(FieldOf(request), "sampling.top_k");
  request = Valid();
  request.sampling.top_p = 0;
  EXPECT_EQ(FieldOf(request), "sampling.top_p");
}

// What a hostile peer may send: any bits in any field.
TEST(ValidateRequestTest, AnyBitsAreEitherRefusedByNameOrInRange) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto any_float = [&random] {
    return std::bit_cast<float>(static_cast<uint32_t>(random()));
  };
  for (int i = 0; i < 100000; ++i) {
    GenerationRequest request = Valid();
    request.token_ids.resize(random() % 20, random() % 110);
    request.original_prompt_tokens = random() % 20;
    request.max_tokens = random() % 20;
    request.stop_token_ids.resize(random() % 140, random() % 110);
    if (random() % 2 != 0) request.sampling.temperature = any_float();
    if (random() % 2 != 0) request.sampling.top_p = any_float();
    if (random() % 2 != 0) request.sampling.min_p = any_float();
    if (random() % 2 != 0) {
      request.sampling.top_k = static_cast<uint32_t>(random());
    }
    const std::string field = FieldOf(request);
    ASSERT_NE(field, "none");
    if (!field.empty()) continue;
    ASSERT_TRUE(std::isfinite(1 / request.sampling.temperature) ||
                request.sampling.temperature == 0);
    ASSERT_GT(request.sampling.top_p, 0);
    ASSERT_LT(request.token_ids.size(), kLimits.max_context_tokens);
  }
}

}  // namespace
}  // namespace baton
