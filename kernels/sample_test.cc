#include "kernels/sample.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "gtest/gtest.h"
#include "kernels/reference/isa_test.h"
#include "kernels/reference/random_values.h"
#include "kernels/reference/sample_reference.h"
#include "kernels/thread_pool.h"

namespace baton {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

nlohmann::json Vectors() {
  std::ifstream file("kernels/sampling_vectors.json");
  return nlohmann::json::parse(file);
}

SampleParams ParamsOf(const nlohmann::json& c) {
  return {.temperature = c["temperature"].get<float>(),
          .top_p = c["top_p"].get<float>(),
          .min_p = c["min_p"].get<float>(),
          .top_k = c["top_k"].get<uint32_t>(),
          .seed = std::stoull(c["seed"].get<std::string>()),
          .sample_index = c["sample_index"].get<uint32_t>(),
          .position = c["position"].get<uint64_t>()};
}

class SampleTest : public IsaTest {
 protected:
  SampledToken Draw(const std::vector<float>& logits,
                    const SampleParams& params) const {
    SampledToken token;
    Sample(
        context(),
        Dense<const float>(logits.data(), 1, static_cast<int>(logits.size())),
        {&params, 1}, {&token, 1});
    return token;
  }
};

TEST_P(SampleTest, MeetsTheIndependentVectors) {
  const nlohmann::json vectors = Vectors();
  double worst = 0;
  ASSERT_EQ(vectors["cases"].size(), 120u);
  for (const nlohmann::json& c : vectors["cases"]) {
    const SampledToken token =
        Draw(c["logits"].get<std::vector<float>>(), ParamsOf(c));
    EXPECT_EQ(token.token_id, c["token"].get<uint32_t>());
    const double logprob = c["logprob_raw"].get<double>();
    worst = std::max(worst, std::abs(token.logprob - logprob));
    EXPECT_NEAR(token.logprob, logprob, 1e-5);
  }
  std::printf("log-probabilities: at most %.3g off\n", worst);
}

// Peaked, flat, tied and masked rows, with every kind of truncation.
struct Case {
  std::vector<float> logits;
  SampleParams params;
};
Case RandomCase(RandomValues& random) {
  const int vocab = 1 + random.Below(random.Below(2) == 0 ? 100 : 5000);
  const float scales[] = {0, 0.01f, 1, 3, 30};
  Case c;
  c.logits =
      random.Normals(static_cast<size_t>(vocab), scales[random.Below(5)]);
  if (random.Below(3) == 0) {
    for (float& x : c.logits) x = std::round(x * 4) / 4;
  }
  if (random.Below(4) == 0) {
    for (float& x : c.logits) {
      if (random.Below(3) == 0) x = -kInfinity;
    }
    c.logits[static_cast<size_t>(random.Below(vocab))] = 1;
  }
  const float temperatures[] = {0, 0.01f, 0.3f, 0.7f, 1, 2, 50};
  const float top_ps[] = {1, 1, 0.999999f, 0.95f, 0.5f, 0.01f, 1e-30f};
  const float min_ps[] = {0, 0, 0, 1e-40f, 1e-4f, 0.05f, 1};
  const uint32_t top_ks[] = {0, 0, 1, 2, 40, 1000, 4294967295u};
  c.params = {.temperature = temperatures[random.Below(7)],
              .top_p = top_ps[random.Below(7)],
              .min_p = min_ps[random.Below(7)],
              .top_k = top_ks[random.Below(7)],
              .seed = random.Next(),
              .sample_index = static_cast<uint32_t>(random.Next()),
              .position = random.Next() >> random.Below(64)};
  return c;
}

TEST_P(SampleTest, AgreesWithTheReferenceWhereItIsSafelyDecided) {
  RandomValues random(1);
  int decided = 0;
  for (int i = 0; i < 800; ++i) {
    const Case c = RandomCase(random);
    const ReferenceSampleResult expected = ReferenceSample(c.logits, c.params);
    if (expected.edge_margin < 1e-5 || expected.draw_margin < 1e-4) continue;
    ++decided;
    const SampledToken token = Draw(c.logits, c.params);
    ASSERT_EQ(token.token_id, expected.token_id)
        << "case " << i << " vocab " << c.logits.size() << " T "
        << c.params.temperature << " top_p " << c.params.top_p << " top_k "
        << c.params.top_k << " min_p " << c.params.min_p;
    EXPECT_NEAR(token.logprob, expected.logprob,
                2e-5 + 2e-7 * std::abs(expected.logprob));
  }
  EXPECT_GT(decided, 500);
}

TEST_P(SampleTest, AllWidthsThreadCountsAndBatchesGiveTheSameBits) {
  RandomValues random(2);
  constexpr int kRows = 37;
  constexpr int kVocab = 1003;
  std::vector<float> logits = random.Normals(kRows * kVocab, 2);
  std::vector<SampleParams> params(kRows);
  for (SampleParams& each : params) each = RandomCase(random).params;
  const auto run = [&](const CpuContext& context) {
    std::vector<SampledToken> out(kRows);
    Sample(context, Dense<const float>(logits.data(), kRows, kVocab), params,
           out);
    std::vector<uint32_t> bits;
    for (const SampledToken& token : out) {
      bits.push_back(token.token_id);
      bits.push_back(std::bit_cast<uint32_t>(token.logprob));
    }
    return bits;
  };
  const std::vector<uint32_t> expected = run({});
  EXPECT_EQ(run(context()), expected);
  for (int num_threads : {2, 3}) {
    ThreadPool pool({.num_threads = num_threads});
    EXPECT_EQ(run({.isa = GetParam(), .threads = &pool}), expected);
  }
  for (size_t r = 0; r < kRows; ++r) {
    const auto row = logits.begin() + static_cast<ptrdiff_t>(r) * kVocab;
    const SampledToken alone = Draw({row, row + kVocab}, params[r]);
    EXPECT_EQ(alone.token_id, expected[2 * r]);
    EXPECT_EQ(std::bit_cast<uint32_t>(alone.logprob), expected[2 * r + 1]);
  }
}

TEST_P(SampleTest, GreedyTakesTheLowestOfEqualLogits) {
  std::vector<float> logits(100, -2);
  logits[17] = logits[63] = logits[64] = 5;
  const SampledToken token = Draw(logits, {.temperature = 0});
  EXPECT_EQ(token.token_id, 17u);
  EXPECT_NEAR(token.logprob, -std::log(3 + 97 * std::exp(-7.0)), 1e-6);
}

TEST_P(SampleTest, ATemperatureTooSmallForFloat32IsGreedy) {
  std::vector<float> logits = {-1, 3, 3.0001f, 0, 2};
  for (float temperature : {1e-38f, 1e-40f, 1e-45f}) {
    EXPECT_EQ(Draw(logits, {.temperature = temperature}).token_id, 2u);
  }
  for (float& x : logits) x -= 10;  // All negative: 1 / T makes -infinities.
  EXPECT_EQ(Draw(logits, {.temperature = 1e-40f}).token_id, 2u);
  logits = {-1, 0, -2};  // 0 times infinity.
  EXPECT_EQ(Draw(logits, {.temperature = 1e-45f}).token_id, 1u);
}

TEST_P(SampleTest, TruncationNeverEmptiesTheSet) {
  const std::vector<float> logits = {0, 3, 1, 3, -kInfinity};
  const SampleParams tight[] = {{.top_p = 1e-45f},
                                {.top_k = 1},
                                {.top_p = 1e-45f, .min_p = 1, .top_k = 1}};
  for (SampleParams params : tight) {
    for (params.seed = 0; params.seed < 50; ++params.seed) {
      EXPECT_EQ(Draw(logits, params).token_id, 1u);
    }
  }
}

TEST_P(SampleTest, MinPOfOneKeepsAllThatTieWithTheBest) {
  const std::vector<float> logits = {0, 3, 2.9999f, 3, -1};
  std::vector<int> drawn(5);
  SampleParams params = {.min_p = 1};
  for (params.seed = 0; params.seed < 200; ++params.seed) {
    ++drawn[Draw(logits, params).token_id];
  }
  EXPECT_GT(drawn[1], 60);
  EXPECT_GT(drawn[3], 60);
  EXPECT_EQ(drawn[1] + drawn[3], 200);
}

TEST_P(SampleTest, TopPKeepsLowerIdsOfEqualLogits) {
  const std::vector<float> logits(1000, 0.5f);
  SampleParams params = {.top_p = 0.25f};
  uint32_t highest = 0;
  for (params.seed = 0; params.seed < 3000; ++params.seed) {
    highest = std::max(highest, Draw(logits, params).token_id);
  }
  // The weight before token 250 is 0.25 of all: still kept. 251 is not.
  EXPECT_LE(highest, 250u);
  EXPECT_GE(highest, 245u);
}

TEST_P(SampleTest, TopKOfTheVocabularyOrMoreIsOff) {
  RandomValues random(4);
  const std::vector<float> logits = random.Normals(77);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const uint32_t off = Draw(logits, {.seed = seed}).token_id;
    for (uint32_t top_k : {77u, 78u, 0xffffffffu}) {
      EXPECT_EQ(Draw(logits, {.top_k = top_k, .seed = seed}).token_id, off);
    }
  }
}

TEST_P(SampleTest, NeverDrawsAMaskedToken) {
  std::vector<float> logits(300, -kInfinity);
  logits[299] = -50;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    EXPECT_EQ(Draw(logits, {.seed = seed}).token_id, 299u);
    EXPECT_EQ(Draw(logits, {.top_p = 0.9f, .seed = seed}).token_id, 299u);
    EXPECT_EQ(Draw(logits, {.top_k = 200, .seed = seed}).token_id, 299u);
  }
}

TEST_P(SampleTest, DrawsWithTheProbabilitiesOfTheSoftmax) {
  const std::vector<float> logits = {0, 1, 2, -1, 0.5f};
  const int draws = 10000;
  for (float temperature : {1.0f, 0.5f}) {
    std::vector<int> drawn(5);
    SampleParams params = {.temperature = temperature, .seed = 99};
    for (int i = 0; i < draws; ++i) {
      params.position = static_cast<uint64_t>(i);
      ++drawn[Draw(logits, params).token_id];
    }
    double total = 0;
    for (float x : logits) total += std::exp(x / temperature);
    double chi_square = 0;
    for (size_t i = 0; i < 5; ++i) {
      const double expected = draws * std::exp(logits[i] / temperature) / total;
      chi_square += std::pow(drawn[i] - expected, 2) / expected;
    }
    EXPECT_LT(chi_square, 18.5);  // Four degrees of freedom: 0.1 %.
  }
}

INSTANTIATE_ISA_TEST(SampleTest);

TEST(SampleReferenceTest, KeepsTheSetsOfTheIndependentVectors) {
  const nlohmann::json vectors = Vectors();
  for (const nlohmann::json& c : vectors["cases"]) {
    if (c["temperature"].get<float>() == 0) continue;
    const ReferenceSampleResult result =
        ReferenceSample(c["logits"].get<std::vector<float>>(), ParamsOf(c));
    EXPECT_EQ(result.token_id, c["token"].get<uint32_t>());
    EXPECT_EQ(result.kept.size(), c["num_kept"].get<size_t>());
    const auto first = c["kept_first8"].get<std::vector<uint32_t>>();
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(result.kept[i], first[i]);
    }
  }
}

TEST(PhiloxTest, GivesTheKnownWords) {
  const nlohmann::json vectors = Vectors();
  for (const nlohmann::json& c : vectors["philox"]) {
    const auto counter = c["counter"].get<std::array<uint32_t, 4>>();
    const auto key = c["key"].get<std::array<uint32_t, 2>>();
    const auto words = c["words"].get<std::array<uint32_t, 4>>();
    EXPECT_EQ(Philox4x32(counter, key), words);
  }
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                       {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420,
                                     0x24126ea1}));
}

TEST(RowIsSampleableTest, RefusesNansPlusInfinityAndNothingFinite) {
  std::vector<float> logits(3 * 70, 1);
  const auto is_sampleable = [&] {
    return RowIsSampleable(Dense<const float>(logits.data(), 3, 70), 1);
  };
  logits[5] = std::nanf("");  // Another row's.
  EXPECT_TRUE(is_sampleable());
  for (size_t at : {70u, 101u, 139u}) {
    logits[at] = std::nanf("");
    EXPECT_FALSE(is_sampleable());
    logits[at] = -std::nanf("");
    EXPECT_FALSE(is_sampleable());
    logits[at] = kInfinity;
    EXPECT_FALSE(is_sampleable());
    logits[at] = -kInfinity;
    EXPECT_TRUE(is_sampleable());
    logits[at] = 1;
  }
  std::fill(logits.begin() + 70, logits.begin() + 140, -kInfinity);
  EXPECT_FALSE(is_sampleable());
  logits[100] = -1e38f;
  EXPECT_TRUE(is_sampleable());
}

}  // namespace
}  // namespace baton
