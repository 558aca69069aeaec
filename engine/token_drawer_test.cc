#include "engine/token_drawer.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr uint32_t kVocab = 8;
constexpr uint32_t kLength = 20;  // Tokens that the sequence has.

// One greedy sequence from the device, with rows of logits that each want a
// certain token.
class TokenDrawerTest : public testing::Test {
 protected:
  TokenDrawerTest()
      : drawer_({.max_running_requests = 2, .num_draft_tokens = 3}, {}),
        slots_(1) {
    input_.rows = {{.source = RowSource::kDevice, .num_rows = 4, .sample = 0}};
    input_.samples.resize(1);
    input_.samples[0].params.temperature = 0;
    slots_[0].num_tokens = kLength;
    slots_[0].newest_token = 0;
    output_.samples.resize(2);
    output_.top.resize(8 * kMaxTopLogprobs);
  }

  void Draw(std::vector<uint32_t> drafts, std::vector<uint32_t> wanted) {
    slots_[0].num_drafts = static_cast<uint32_t>(drafts.size());
    std::copy(drafts.begin(), drafts.end(), slots_[0].drafts.begin());
    const CorrectedRows corrected = {
        .num_rows = static_cast<uint32_t>(wanted.size()),
        .first_position = kLength - 1,
        .num_draws = static_cast<uint32_t>(wanted.size()),
        .draw_position = kLength};
    logits_.assign(wanted.size() * kVocab, 0);
    for (size_t i = 0; i < wanted.size(); ++i) {
      logits_[i * kVocab + wanted[i]] = 2;
      if (bad_row_ == static_cast<int>(i)) {
        logits_[i * kVocab] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    drawer_.DrawTokens(
        input_, {&corrected, 1},
        Dense(logits_.data(), static_cast<int>(wanted.size()), kVocab), slots_,
        &output_);
  }

  std::vector<uint32_t> Tokens() const {
    std::vector<uint32_t> tokens;
    const SampleOutput& sample = output_.samples[0];
    for (uint32_t i = 0; i < sample.num_tokens; ++i) {
      tokens.push_back(sample.tokens[i].token_id);
    }
    return tokens;
  }

  TokenDrawer drawer_;
  StepInput input_;
  std::vector<SequenceSlot> slots_;
  StepOutput output_;
  std::vector<float> logits_;
  int bad_row_ = -1;
};

TEST_F(TokenDrawerTest, DraftsAreTakenUpToTheFirstThatIsNotTheDraw) {
  Draw({1, 2, 3}, {1, 2, 4, 5});
  EXPECT_EQ(Tokens(), (std::vector<uint32_t>{1, 2, 4}));
  EXPECT_EQ(slots_[0].num_tokens, kLength + 3);
  EXPECT_EQ(slots_[0].newest_token, 4u);
  EXPECT_EQ(slots_[0].num_drafts, 0u);
  EXPECT_EQ(output_.samples[0].num_verified, 3u);
}

TEST_F(TokenDrawerTest, AllDraftsRightGiveOneTokenMore) {
  Draw({1, 2, 3}, {1, 2, 3, 7});
  EXPECT_EQ(Tokens(), (std::vector<uint32_t>{1, 2, 3, 7}));
}

TEST_F(TokenDrawerTest, ARowOfNoDistributionEndsTheSlotWhereItIsReached) {
  bad_row_ = 1;
  Draw({1, 2, 3}, {1, 2, 3, 7});
  EXPECT_EQ(Tokens(), (std::vector<uint32_t>{1}));
  EXPECT_FALSE(output_.samples[0].sampleable);
  EXPECT_TRUE(slots_[0].ended);
}

TEST_F(TokenDrawerTest, ARowOfNoDistributionBehindARefusedDraftIsNotReached) {
  bad_row_ = 1;
  Draw({5, 2, 3}, {1, 2, 3, 7});
  EXPECT_EQ(Tokens(), (std::vector<uint32_t>{1}));
  EXPECT_TRUE(output_.samples[0].sampleable);
  EXPECT_FALSE(slots_[0].ended);
}

TEST_F(TokenDrawerTest, DraftsBeforeARowCountAsGeneratedThere) {
  input_.samples[0].counts = true;
  input_.samples[0].params.presence_penalty = 3;
  slots_[0].StartCounting(kVocab, std::vector<uint32_t>{3}, 1);
  // Row 1 wants 4 again, which its draft makes less likely than the others.
  Draw({4, 0, 0}, {4, 4, 0, 0});
  EXPECT_EQ(Tokens(), (std::vector<uint32_t>{4, 0, 1}));
  EXPECT_EQ(slots_[0].token_counts,
            (std::vector<uint32_t>{1, 1, 0, kPromptTokenBit, 1, 0, 0, 0}));
}

TEST_F(TokenDrawerTest, ForbiddenTokensAreFreeFromTheirPositionOn) {
  const std::vector<uint32_t> stops = {6};
  input_.samples[0].params.forbidden = stops;
  input_.samples[0].forbidden_before = kLength + 1;
  Draw({0, 6, 0}, {6, 6, 1, 0});
  EXPECT_EQ(Tokens(), (std::vector<uint32_t>{0, 6, 1}));
}

TEST_F(TokenDrawerTest, TokensAreScoredEachInItsOwnRow) {
  input_.scores = {{.token_id = 2, .num_top_logprobs = 1},
                   {.token_id = 2, .num_top_logprobs = 0},
                   {.token_id = 0, .num_top_logprobs = 2}};
  output_.scores.resize(8);
  output_.score_top.resize(8 * kMaxTopLogprobs);
  logits_.assign(3 * kVocab, 0);
  logits_[5] = 3;
  logits_[kVocab] = std::numeric_limits<float>::quiet_NaN();
  drawer_.ScoreRows(input_, Dense(logits_.data(), 3, kVocab), &output_);
  EXPECT_EQ(output_.scores[0].token_id, 2u);
  EXPECT_NEAR(output_.scores[0].logprob, -3.2990, 1e-3);  // log 1/(e^3 + 7)
  EXPECT_EQ(output_.score_top[0].token_id, 5u);
  EXPECT_TRUE(std::isnan(output_.scores[1].logprob));
  EXPECT_NEAR(output_.scores[2].logprob, -2.0794, 1e-3);  // log 1/8
  EXPECT_EQ(output_.score_top[2 * kMaxTopLogprobs + 1].token_id, 1u);
}

TEST_F(TokenDrawerTest, DraftsAreDrawnBehindEachOther) {
  Draw({}, {5});
  logits_.assign(kVocab, 0);
  logits_[2] = 3;
  const uint32_t row = 0;
  for (uint32_t i = 1; i <= 2; ++i) {
    drawer_.DrawDrafts(input_, {&row, 1}, Dense(logits_.data(), 1, kVocab),
                       slots_, &output_);
    EXPECT_EQ(slots_[0].num_drafts, i);
    EXPECT_EQ(slots_[0].drafts[i - 1], 2u);
  }
  const SampleOutput& sample = output_.samples[0];
  EXPECT_EQ(sample.num_drafts, 2u);
  EXPECT_NEAR(sample.draft_probability[0], 0.7416, 1e-3);  // e^3 / (e^3 + 7)
}

}  // namespace
}  // namespace baton
