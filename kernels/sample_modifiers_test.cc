// Penalties, bias, forbidden tokens and log-probabilities; sample_test.cc has
// the rest of kernels/sample.h.
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "kernels/reference/isa_test.h"
#include "kernels/reference/random_values.h"
#include "kernels/reference/sample_cases.h"
#include "kernels/reference/sample_reference.h"
#include "kernels/sample.h"
#include "kernels/thread_pool.h"

namespace baton {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

using TopList = std::array<SampledToken, kMaxTopLogprobs>;

uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }

void AppendBits(const SampledToken& token, std::vector<uint32_t>* bits) {
  bits->push_back(token.token_id);
  bits->push_back(BitsOf(token.logprob));
}

SampleCase CaseOf(const nlohmann::json& c) {
  SampleCase result;
  result.logits = c["logits"].get<std::vector<float>>();
  result.params = {.temperature = c["temperature"].get<float>(),
                   .top_p = c["top_p"].get<float>(),
                   .min_p = c["min_p"].get<float>(),
                   .top_k = c["top_k"].get<uint32_t>(),
                   .seed = std::stoull(c["seed"].get<std::string>()),
                   .sample_index = c["sample_index"].get<uint32_t>(),
                   .position = c["position"].get<uint64_t>(),
                   .repetition_penalty = c["repetition_penalty"].get<float>(),
                   .presence_penalty = c["presence_penalty"].get<float>(),
                   .frequency_penalty = c["frequency_penalty"].get<float>(),
                   .num_top_logprobs = c["num_top_logprobs"].get<uint32_t>()};
  result.token_counts = c["token_counts"].get<std::vector<uint32_t>>();
  result.uncounted = c["uncounted"].get<std::vector<uint32_t>>();
  for (const nlohmann::json& bias : c["logit_bias"]) {
    result.logit_bias.push_back(
        {bias["token_id"].get<uint32_t>(), bias["bias"].get<float>()});
  }
  result.forbidden = c["forbidden"].get<std::vector<uint32_t>>();
  return result;
}

std::vector<ReferenceLogprob> ListOf(const nlohmann::json& entries) {
  std::vector<ReferenceLogprob> result;
  for (const nlohmann::json& entry : entries) {
    result.push_back({entry[0].get<uint32_t>(), entry[1].get<double>()});
  }
  return result;
}

class SampleModifiersTest : public IsaTest {
 protected:
  SampledToken Draw(const std::vector<float>& logits,
                    const SampleParams& params, TopList* top = nullptr) const {
    SampledToken token;
    Sample(context(), View(logits), {&params, 1}, {&token, 1},
           top == nullptr ? std::span<SampledToken>() : *top);
    return token;
  }
  SampledToken Score(const std::vector<float>& logits,
                     const ScoreParams& params, TopList* top = nullptr) const {
    SampledToken token;
    ScoreTokens(context(), View(logits), {&params, 1}, {&token, 1},
                top == nullptr ? std::span<SampledToken>() : *top);
    return token;
  }
  static MatrixView<const float> View(const std::vector<float>& logits) {
    return Dense<const float>(logits.data(), 1,
                              static_cast<int>(logits.size()));
  }
};

// The first num_top entries of `top` are the first of `expected`, then nothing;
// no more of `top`, of which all was {7, 7}, has been touched.
void ExpectList(const TopList& top, uint32_t num_top,
                const std::vector<ReferenceLogprob>& expected) {
  for (size_t i = 0; i < kMaxTopLogprobs; ++i) {
    if (i >= num_top) {
      EXPECT_EQ(top[i].token_id, 7u);
      EXPECT_EQ(top[i].logprob, 7);
    } else if (i < expected.size()) {
      EXPECT_EQ(top[i].token_id, expected[i].token_id);
      EXPECT_NEAR(top[i].logprob, expected[i].logprob,
                  1e-5 + 2e-7 * std::abs(expected[i].logprob));
    } else {
      EXPECT_EQ(top[i].token_id, kNoToken);
      EXPECT_EQ(top[i].logprob, -kInfinity);
    }
  }
}

TopList Untouched() {
  TopList top;
  top.fill({7, 7});
  return top;
}

nlohmann::json Vectors() {
  std::ifstream file("kernels/sampling_vectors_full.json");
  return nlohmann::json::parse(file);
}

TEST_P(SampleModifiersTest, MeetsTheIndependentVectors) {
  const nlohmann::json vectors = Vectors();
  ASSERT_EQ(vectors["cases"].size(), 160u);
  for (const nlohmann::json& c : vectors["cases"]) {
    SCOPED_TRACE(c.dump());
    const SampleCase given = CaseOf(c);
    SampleParams params = given.Borrowed();
    TopList top = Untouched();
    SampledToken token = Draw(given.logits, params, &top);
    EXPECT_EQ(token.token_id, c["token"].get<uint32_t>());
    EXPECT_NEAR(token.logprob, c["logprob_raw"].get<double>(), 1e-5);
    ExpectList(top, params.num_top_logprobs, ListOf(c["top_raw"]));

    top = Untouched();
    params.logprobs_after_truncation = true;
    token = Draw(given.logits, params, &top);
    EXPECT_EQ(token.token_id, c["token"].get<uint32_t>());
    EXPECT_NEAR(token.logprob, c["logprob_kept"].get<double>(), 1e-5);
    ExpectList(top, params.num_top_logprobs, ListOf(c["top_kept"]));

    top = Untouched();
    token =
        Score(given.logits, {token.token_id, params.num_top_logprobs}, &top);
    EXPECT_NEAR(token.logprob, c["logprob_raw"].get<double>(), 1e-5);
    ExpectList(top, params.num_top_logprobs, ListOf(c["top_raw"]));
  }
}

TEST_P(SampleModifiersTest, AgreesWithTheReferenceWhereItIsSafelyDecided) {
  RandomValues random(1);
  int decided = 0;
  for (int i = 0; i < 800; ++i) {
    SCOPED_TRACE(i);
    SampleCase c = RandomSampleCase(random);
    AddRandomModifiers(random, &c);
    const SampleParams params = c.Borrowed();
    const ReferenceSampleResult expected = ReferenceSample(c.logits, params);
    if (expected.edge_margin < 1e-5 || expected.draw_margin < 1e-4) continue;
    ++decided;
    TopList top = Untouched();
    const SampledToken token = Draw(c.logits, params, &top);
    const bool of_kept = params.logprobs_after_truncation;
    const double logprob = of_kept ? expected.logprob_kept : expected.logprob;
    ASSERT_EQ(token.token_id, expected.token_id);
    if (logprob == -kInfinity) {
      EXPECT_EQ(token.logprob, -kInfinity);
    } else {
      EXPECT_NEAR(token.logprob, logprob, 2e-5 + 2e-7 * std::abs(logprob));
    }
    ExpectList(top, params.num_top_logprobs,
               of_kept ? expected.ranking_kept : expected.ranking);
  }
  EXPECT_GT(decided, 500);
}

TEST_P(SampleModifiersTest, AllWidthsThreadCountsAndBatchesGiveTheSameBits) {
  RandomValues random(2);
  constexpr size_t kRows = 61;
  constexpr size_t kVocab = 1003;
  const std::vector<float> logits = random.Normals(kRows * kVocab, 2);
  std::vector<SampleCase> cases;
  std::vector<SampleParams> params;
  for (size_t r = 0; r < kRows; ++r) {
    cases.push_back(RandomSampleCase(random));
    cases[r].logits.assign(kVocab, 0);
    if (r % 4 != 0) AddRandomModifiers(random, &cases[r]);
  }
  params.reserve(kRows);
  for (const SampleCase& c : cases) params.push_back(c.Borrowed());
  const auto run = [&](const CpuContext& context, size_t first, size_t rows) {
    std::vector<SampledToken> out(rows);
    std::vector<SampledToken> top(rows * kMaxTopLogprobs);
    Sample(context,
           Dense<const float>(logits.data() + first * kVocab,
                              static_cast<int>(rows), kVocab),
           std::span(params).subspan(first, rows), out, top);
    std::vector<uint32_t> bits;
    for (size_t r = 0; r < rows; ++r) {
      AppendBits(out[r], &bits);
      for (size_t i = 0; i < kMaxTopLogprobs; ++i) {
        AppendBits(top[r * kMaxTopLogprobs + i], &bits);
      }
    }
    return bits;
  };
  const std::vector<float> logits_before = logits;
  const std::vector<uint32_t> expected = run({}, 0, kRows);
  EXPECT_EQ(run(context(), 0, kRows), expected);
  for (int num_threads : {2, 3}) {
    ThreadPool pool({.num_threads = num_threads});
    EXPECT_EQ(run({.isa = GetParam(), .threads = &pool}, 0, kRows), expected);
  }
  std::vector<uint32_t> one_by_one;
  for (size_t r = 0; r < kRows; ++r) {
    const std::vector<uint32_t> alone = run(context(), r, 1);
    one_by_one.insert(one_by_one.end(), alone.begin(), alone.end());
  }
  EXPECT_EQ(one_by_one, expected);
  EXPECT_EQ(logits, logits_before);
}

TEST_P(SampleModifiersTest, ModifiersWithoutEffectLeaveTheBits) {
  RandomValues random(3);
  for (int i = 0; i < 100; ++i) {
    SampleCase c = RandomSampleCase(random);
    std::vector<uint32_t> plain;
    AppendBits(Draw(c.logits, c.params), &plain);
    const uint32_t vocab = static_cast<uint32_t>(c.logits.size());
    // Counts without penalties, penalties of nothing, and ids of no token.
    c.token_counts.assign(vocab, kPromptTokenBit | 3);
    c.uncounted = {0, vocab, kNoToken};
    c.logit_bias = {{vocab, 5}, {0, 0}, {kNoToken, -5}};
    c.forbidden = {vocab, kNoToken};
    std::vector<uint32_t> neutral;
    AppendBits(Draw(c.logits, c.Borrowed()), &neutral);
    EXPECT_EQ(neutral, plain);
    c.token_counts.assign(vocab, 0);
    c.uncounted = {vocab, kNoToken};
    c.params.repetition_penalty = 1.5f;
    c.params.presence_penalty = 1;
    std::vector<uint32_t> unseen;
    AppendBits(Draw(c.logits, c.Borrowed()), &unseen);
    EXPECT_EQ(unseen, plain);
  }
}

TEST_P(SampleModifiersTest, AnUncountedTokenCountsAsACountedOne) {
  RandomValues random(4);
  for (int i = 0; i < 200; ++i) {
    SampleCase c = RandomSampleCase(random);
    AddRandomModifiers(random, &c);
    if (c.token_counts.empty()) continue;
    c.params.logprobs_after_truncation = true;
    std::vector<uint32_t> apart;
    AppendBits(Draw(c.logits, c.Borrowed()), &apart);
    for (uint32_t token : c.uncounted) ++c.token_counts[token];
    c.uncounted.clear();
    std::vector<uint32_t> together;
    AppendBits(Draw(c.logits, c.Borrowed()), &together);
    EXPECT_EQ(apart, together);
  }
}

TEST_P(SampleModifiersTest, PenaltiesAreTheDefinedOnes) {
  const std::vector<float> logits = {4, -4, 4, -4, 4, 0};
  // In the prompt, in the prompt, twice in the output, once, both, neither.
  const std::vector<uint32_t> counts = {
      kPromptTokenBit, kPromptTokenBit, 2, 1, kPromptTokenBit | 1, 0};
  const SampleParams params = {.temperature = 1,
                               .repetition_penalty = 2,
                               .presence_penalty = 0.5f,
                               .frequency_penalty = 0.25f,
                               .token_counts = counts.data(),
                               .num_top_logprobs = 6,
                               .logprobs_after_truncation = true};
  const float expected[] = {
      2, -8, 2 - 0.5f - 0.5f, -8 - 0.25f - 0.5f, 2 - 0.25f - 0.5f, 0};
  TopList top;
  Draw(logits, params, &top);
  for (size_t i = 0; i < 6; ++i) {
    const double above_token_0 = top[i].logprob - top[0].logprob;
    EXPECT_NEAR(above_token_0, expected[top[i].token_id] - expected[0], 1e-5);
  }
  EXPECT_EQ(top[0].token_id, 0u);
}

TEST_P(SampleModifiersTest, GreedyTakesTheLargestModifiedLogit) {
  const std::vector<float> logits = {1, 3, 2.5f, 0};
  const std::vector<uint32_t> counts = {0, 1, 0, 0};
  const LogitBias bias[] = {{3, 4}};
  const uint32_t forbidden[] = {2, 3};
  SampleParams params = {
      .temperature = 0, .presence_penalty = 1, .token_counts = counts.data()};
  EXPECT_EQ(Draw(logits, params).token_id, 2u);
  params.logit_bias = bias;
  EXPECT_EQ(Draw(logits, params).token_id, 3u);
  params.forbidden = forbidden;
  EXPECT_EQ(Draw(logits, params).token_id, 1u);
  EXPECT_NEAR(Draw(logits, params).logprob, -0.583139, 1e-5);
  params.logprobs_after_truncation = true;
  EXPECT_EQ(Draw(logits, params).logprob, 0);  // Alone in its set.
}

TEST_P(SampleModifiersTest, NeverDrawsAForbiddenToken) {
  const std::vector<float> logits = {9, 1, 9, 1};
  const uint32_t forbidden[] = {2, 0, 2};
  const LogitBias bias[] = {{0, 100}, {2, kLargest}};
  SampleParams params = {.logit_bias = bias, .forbidden = forbidden};
  for (params.seed = 0; params.seed < 200; ++params.seed) {
    EXPECT_EQ(Draw(logits, params).token_id % 2, 1u);
  }
  const LogitBias banned[] = {{1, -kInfinity}};
  params.logit_bias = banned;
  for (params.seed = 0; params.seed < 50; ++params.seed) {
    EXPECT_EQ(Draw(logits, params).token_id, 3u);
  }
}

TEST_P(SampleModifiersTest, WithEverythingForbiddenTheFirstTokenIsDrawn) {
  const std::vector<float> logits = {1, 2, 3};
  const uint32_t forbidden[] = {0, 1, 2};
  for (float temperature : {0.0f, 1.0f}) {
    for (float top_p : {0.5f, 1.0f}) {
      SampleParams params = {.temperature = temperature,
                             .top_p = top_p,
                             .forbidden = forbidden,
                             .num_top_logprobs = 2};
      TopList top = Untouched();
      SampledToken token = Draw(logits, params, &top);
      EXPECT_EQ(token.token_id, 0u);
      EXPECT_NEAR(token.logprob, -2.407606, 1e-5);
      EXPECT_EQ(top[0].token_id, 2u);
      params.logprobs_after_truncation = true;
      top = Untouched();
      token = Draw(logits, params, &top);
      EXPECT_EQ(token.token_id, 0u);
      EXPECT_EQ(token.logprob, -kInfinity);
      ExpectList(top, 2, {});
    }
  }
}

TEST_P(SampleModifiersTest, ExtremeValuesGiveATokenAndNoNan) {
  RandomValues random(5);
  const float logits[] = {kLargest, -kLargest, -kInfinity, 0, -0.0f, 1, 1e-45f};
  const float repetitions[] = {1, 1e-45f, kLargest, 2};
  const float penalties[] = {0, kLargest, -kLargest, 1};
  const float biases[] = {kLargest, -kLargest, -kInfinity, 1};
  for (int i = 0; i < 2000; ++i) {
    SampleCase c = RandomSampleCase(random);
    c.logits.resize(1 + static_cast<size_t>(random.Below(20)));
    for (float& x : c.logits) x = logits[random.Below(7)];
    c.params.repetition_penalty = repetitions[random.Below(4)];
    c.params.presence_penalty = penalties[random.Below(4)];
    c.params.frequency_penalty = penalties[random.Below(4)];
    c.params.num_top_logprobs = kMaxTopLogprobs;
    c.params.logprobs_after_truncation = random.Below(2) == 0;
    for (size_t t = 0; t < c.logits.size(); ++t) {
      c.token_counts.push_back(static_cast<uint32_t>(random.Next()));
      if (random.Below(2) == 0) continue;
      c.logit_bias.push_back(
          {static_cast<uint32_t>(t), biases[random.Below(4)]});
    }
    TopList top;
    const SampledToken token = Draw(c.logits, c.Borrowed(), &top);
    EXPECT_LT(token.token_id, c.logits.size());
    EXPECT_FALSE(std::isnan(token.logprob));
    for (const SampledToken& entry : top) {
      EXPECT_FALSE(std::isnan(entry.logprob));
    }
  }
}

// Infinity less infinity, among others.
TEST_P(SampleModifiersTest, AnOverflowCountsAsTheLargestFloat) {
  const std::vector<float> logits = {kLargest, kLargest, 5};
  const std::vector<uint32_t> counts = {2, 0, 1};
  const LogitBias bias[] = {{0, kLargest}, {1, kLargest}};
  SampleParams params = {.frequency_penalty = kLargest,
                         .token_counts = counts.data(),
                         .logit_bias = bias,
                         .logprobs_after_truncation = true};
  std::vector<int> drawn(3);
  for (params.seed = 0; params.seed < 100; ++params.seed) {
    const SampledToken token = Draw(logits, params);
    ++drawn[token.token_id];
    EXPECT_NEAR(token.logprob, std::log(0.5), 1e-6);
  }
  // Beside the largest float, noise is nothing: a tie.
  EXPECT_EQ(drawn, (std::vector<int>{100, 0, 0}));
}

TEST_P(SampleModifiersTest, ListsEqualLogitsByLowerIdAndNoMaskedToken) {
  std::vector<float> logits(50, 1);
  logits[40] = logits[20] = 2;
  logits[0] = -kInfinity;
  TopList top = Untouched();
  Score(logits, {.token_id = 3, .num_top_logprobs = 5}, &top);
  const uint32_t expected[] = {20, 40, 1, 2, 3};
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(top[i].token_id, expected[i]);
  logits.assign(4, -kInfinity);
  logits[2] = -5;
  top = Untouched();
  Draw(logits, {.num_top_logprobs = 3}, &top);
  ExpectList(top, 3, {{2, 0}});
}

TEST_P(SampleModifiersTest, AScoredTokenHasTheBitsOfADrawnOne) {
  RandomValues random(6);
  for (int i = 0; i < 100; ++i) {
    const SampleCase c = RandomSampleCase(random);
    SampleParams params = c.params;
    params.num_top_logprobs = kMaxTopLogprobs;
    TopList drawn_top;
    TopList top;
    const SampledToken drawn = Draw(c.logits, params, &drawn_top);
    const SampledToken scored =
        Score(c.logits, {drawn.token_id, kMaxTopLogprobs}, &top);
    EXPECT_EQ(BitsOf(scored.logprob), BitsOf(drawn.logprob));
    for (size_t t = 0; t < kMaxTopLogprobs; ++t) {
      EXPECT_EQ(top[t].token_id, drawn_top[t].token_id);
      EXPECT_EQ(BitsOf(top[t].logprob), BitsOf(drawn_top[t].logprob));
    }
  }
}

TEST_P(SampleModifiersTest, DrawsWithTheProbabilitiesOfTheModifiedLogits) {
  const std::vector<float> logits = {0, 1, 2, -1, 0.5f};
  const std::vector<uint32_t> counts = {0, kPromptTokenBit, 2, 1, 0};
  const uint32_t uncounted[] = {4, 2};
  const LogitBias bias[] = {{3, 2.5f}};
  const int draws = 10000;
  SampleParams params = {.temperature = 0.8f,
                         .seed = 99,
                         .repetition_penalty = 1.3f,
                         .presence_penalty = 0.2f,
                         .frequency_penalty = 0.3f,
                         .token_counts = counts.data(),
                         .uncounted = uncounted,
                         .logit_bias = bias};
  std::vector<int> drawn(5);
  for (int i = 0; i < draws; ++i) {
    params.position = static_cast<uint64_t>(i);
    ++drawn[Draw(logits, params).token_id];
  }
  const double modified[] = {0, 1 / 1.3, 2 / 1.3 - 0.9 - 0.2,
                             1.5 / 1.3 - 0.3 - 0.2, 0.5 / 1.3 - 0.3 - 0.2};
  double total = 0;
  for (double x : modified) total += std::exp(x / 0.8);
  double chi_square = 0;
  for (size_t i = 0; i < 5; ++i) {
    const double expected = draws * std::exp(modified[i] / 0.8) / total;
    chi_square += std::pow(drawn[i] - expected, 2) / expected;
  }
  EXPECT_LT(chi_square, 18.5);  // Four degrees of freedom: 0.1 %.
}

INSTANTIATE_ISA_TEST(SampleModifiersTest);

TEST(SampleReferenceTest, MeetsTheIndependentVectorsWithModifiers) {
  const nlohmann::json vectors = Vectors();
  for (const nlohmann::json& c : vectors["cases"]) {
    const SampleCase given = CaseOf(c);
    const ReferenceSampleResult result =
        ReferenceSample(given.logits, given.Borrowed());
    EXPECT_EQ(result.token_id, c["token"].get<uint32_t>());
    EXPECT_EQ(result.ranking_kept.size(), c["num_kept"].get<size_t>());
    EXPECT_NEAR(result.logprob, c["logprob_raw"].get<double>(), 1e-5);
    EXPECT_NEAR(result.logprob_kept, c["logprob_kept"].get<double>(), 1e-5);
  }
}

}  // namespace
}  // namespace baton
