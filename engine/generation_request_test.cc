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

TEST(ValidateRequestTest, SamplesAreFewAndOneInAPrefill) {
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
  EXPECT_EQ(FieldOf(request), "");
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
    request = Valid();
    request.sampling.repetition_penalty = bad;
    EXPECT_EQ(FieldOf(request), "sampling.repetition_penalty") << bad;
    request = Valid();
    request.sampling.presence_penalty = bad * 3;
    EXPECT_EQ(FieldOf(request), "sampling.presence_penalty") << bad;
    request = Valid();
    request.sampling.frequency_penalty = bad * 3;
    EXPECT_EQ(FieldOf(request), "sampling.frequency_penalty") << bad;
    request = Valid();
    request.sampling.logit_bias = {{.token_id = 1, .bias = bad * 101}};
    EXPECT_EQ(FieldOf(request), "sampling.logit_bias") << bad;
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

TEST(ValidateRequestTest, PenaltiesAndBiasesAreGoodUpToTheirLimits) {
  GenerationRequest request = Valid();
  for (const float sign : {-1.0f, 1.0f}) {
    request.sampling.presence_penalty = 2 * sign;
    request.sampling.frequency_penalty = -2 * sign;
    request.sampling.logit_bias = {{.token_id = 99, .bias = 100 * sign},
                                   {.token_id = 0, .bias = -100 * sign}};
    EXPECT_EQ(FieldOf(request), "");
  }
  for (const float good : {0.01f, 100.0f}) {
    request.sampling.repetition_penalty = good;
    EXPECT_EQ(FieldOf(request), "");
  }
  for (const float bad : {0.0f, 0.0099f, 100.1f}) {
    request.sampling.repetition_penalty = bad;
    EXPECT_EQ(FieldOf(request), "sampling.repetition_penalty");
  }
}

TEST(ValidateRequestTest, BiasesAreOfTheVocabularyOnceEachAndLimitedInNumber) {
  constexpr RequestLimits kLarge = {.vocab_size = 5000,
                                    .max_context_tokens = 16};
  GenerationRequest request = Valid();
  std::vector<LogitBias>& biases = request.sampling.logit_bias;
  for (uint32_t i = 0; i < kMaxLogitBiases; ++i) biases.push_back({i, 1});
  EXPECT_TRUE(ValidateRequest(request, kLarge).ok());
  biases.back().token_id = 0;
  EXPECT_EQ(ErrorField(ValidateRequest(request, kLarge)),
            "sampling.logit_bias");
  biases.back().token_id = 5000;
  EXPECT_EQ(ErrorField(ValidateRequest(request, kLarge)),
            "sampling.logit_bias");
  biases.back().token_id = 4000;
  biases.push_back({4001, 1});
  EXPECT_EQ(ErrorField(ValidateRequest(request, kLarge)),
            "sampling.logit_bias");
}

TEST(ValidateRequestTest, AlternativesAreAsManyAsTheKernelLists) {
  GenerationRequest request = Valid();
  for (const uint32_t top : {kMaxTopLogprobs, kMaxTopLogprobs + 1, ~0u}) {
    request.sampling.num_top_logprobs = top;
    EXPECT_EQ(FieldOf(request), top == kMaxTopLogprobs ? "" : "logprobs.top");
  }
}

TEST(ValidateRequestTest, PromptLogprobsBeginInThePrompt) {
  GenerationRequest request = Valid();
  request.token_ids.push_back(4);  // Resumed.
  for (const uint32_t from : {0u, 2u, 3u, ~0u}) {
    request.prompt_logprobs_from = from;
    EXPECT_EQ(FieldOf(request), from < 3 ? "" : "logprobs.prompt_from");
  }
}

TEST(ValidateRequestTest, MinTokensIsAtMostMaxTokens) {
  GenerationRequest request = Valid();
  for (const uint32_t min : {request.max_tokens, request.max_tokens + 1, ~0u}) {
    request.min_tokens = min;
    EXPECT_EQ(FieldOf(request),
              min == request.max_tokens ? "" : "stopping.min_tokens");
  }
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
    if (random() % 2 != 0) request.sampling.repetition_penalty = any_float();
    if (random() % 2 != 0) request.sampling.presence_penalty = any_float();
    if (random() % 2 != 0) request.sampling.frequency_penalty = any_float();
    for (uint64_t n = random() % 3; n > 0; --n) {
      request.sampling.logit_bias.push_back(
          {static_cast<uint32_t>(random() % 110), any_float()});
    }
    request.sampling.num_top_logprobs = random() % 25;
    request.min_tokens = random() % 20;
    if (random() % 2 != 0) request.prompt_logprobs_from = random() % 20;
    const std::string field = FieldOf(request);
    ASSERT_NE(field, "none");
    if (!field.empty()) continue;
    ASSERT_TRUE(std::isfinite(1 / request.sampling.temperature) ||
                request.sampling.temperature == 0);
    ASSERT_GT(request.sampling.top_p, 0);
    ASSERT_LT(request.token_ids.size(), kLimits.max_context_tokens);
    ASSERT_GE(request.sampling.repetition_penalty, 0.01f);
    for (const LogitBias& bias : request.sampling.logit_bias) {
      ASSERT_TRUE(std::isfinite(bias.bias));
      ASSERT_LT(bias.token_id, kLimits.vocab_size);
    }
  }
}

}  // namespace
}  // namespace baton
