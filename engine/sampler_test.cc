#include "engine/sampler.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr int kVocab = 40;

std::vector<float> Logits(int rows) {
  std::vector<float> logits(rows * kVocab);
  for (int i = 0; i < rows * kVocab; ++i) {
    logits[i] = static_cast<float>(i * 37 % 101) / 10;
  }
  return logits;
}

SamplerOutput Draw(std::vector<float> logits,
                   const std::vector<SampleRow>& samples) {
  std::vector<SampleParams> params;
  BuildSampleParams(samples, &params);
  SamplerOutput output;
  const int rows = static_cast<int>(logits.size()) / kVocab;
  DrawTokens({}, Dense(logits.data(), rows, kVocab), samples, params, &output);
  return output;
}

SequenceMetadata WithSeed(uint64_t seed, uint32_t sample_index) {
  GenerationRequest request;
  request.token_ids = {1};
  request.sampling = {.temperature = 0.5f,
                      .top_p = 0.9f,
                      .min_p = 0.01f,
                      .top_k = 7,
                      .seed = seed};
  request.sample_index = sample_index;
  return SequenceMetadata(std::move(request), nullptr, absl::UnixEpoch());
}

TEST(SamplerTest, ARowsParametersAreItsRequestsAndItsPosition) {
  SequenceMetadata sequence = WithSeed(11, 3);
  std::vector<SampleParams> params;
  BuildSampleParams(
      std::vector<SampleRow>{{.sequence = &sequence, .position = 9}}, &params);
  ASSERT_EQ(params.size(), 1u);
  EXPECT_EQ(params[0].temperature, 0.5f);
  EXPECT_EQ(params[0].top_p, 0.9f);
  EXPECT_EQ(params[0].min_p, 0.01f);
  EXPECT_EQ(params[0].top_k, 7u);
  EXPECT_EQ(params[0].seed, 11u);
  EXPECT_EQ(params[0].sample_index, 3u);
  EXPECT_EQ(params[0].position, 9u);
}

TEST(SamplerTest, OneRowOfLogitsServesManySamplesAndSomeServeNone) {
  SequenceMetadata first = WithSeed(1, 0), second = WithSeed(1, 1);
  const std::vector<float> logits = Logits(3);
  const SamplerOutput both =
      Draw(logits, {{.sequence = &first, .logits_row = 2, .position = 5},
                    {.sequence = &second, .logits_row = 2, .position = 5},
                    {.sequence = &second, .logits_row = 0, .position = 6}});
  const std::vector<float> last(logits.begin() + 2 * kVocab, logits.end());
  EXPECT_EQ(
      both.tokens[0].token_id,
      Draw(last, {{.sequence = &first, .position = 5}}).tokens[0].token_id);
  EXPECT_EQ(
      both.tokens[1].token_id,
      Draw(last, {{.sequence = &second, .position = 5}}).tokens[0].token_id);
}

TEST(SamplerTest, ARowWithNanIsMarkedAndTheOthersDoNotNotice) {
  SequenceMetadata sequence = WithSeed(4, 0);
  const std::vector<SampleRow> samples = {
      {.sequence = &sequence, .logits_row = 0, .position = 1},
      {.sequence = &sequence, .logits_row = 1, .position = 2},
      {.sequence = &sequence, .logits_row = 2, .position = 3}};
  std::vector<float> logits = Logits(3);
  const SamplerOutput good = Draw(logits, samples);
  logits[kVocab + 5] = std::numeric_limits<float>::quiet_NaN();
  const SamplerOutput bad = Draw(logits, samples);
  EXPECT_EQ(good.sampleable, (std::vector<uint8_t>{1, 1, 1}));
  EXPECT_EQ(bad.sampleable, (std::vector<uint8_t>{1, 0, 1}));
  for (int i : {0, 2}) {
    EXPECT_EQ(bad.tokens[i].token_id, good.tokens[i].token_id);
    EXPECT_EQ(bad.tokens[i].logprob, good.tokens[i].logprob);
  }
}

}  // namespace
}  // namespace baton
