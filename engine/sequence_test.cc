#include "engine/sequence.h"

#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(SequenceTest, ExactlyTheseTransitionsAreLegal) {
  using enum SequencePhase;
  const std::set<std::pair<SequencePhase, SequencePhase>> legal = {
      {kWaiting, kImportingKv}, {kWaiting, kPrefilling},
      {kWaiting, kFinished},    {kImportingKv, kDecoding},
      {kImportingKv, kEnding},  {kImportingKv, kFinished},
      {kPrefilling, kDecoding}, {kPrefilling, kExported},
      {kPrefilling, kWaiting},  {kPrefilling, kEnding},
      {kPrefilling, kFinished}, {kDecoding, kWaiting},
      {kDecoding, kFinished},   {kExported, kEnding},
      {kExported, kFinished},   {kEnding, kFinished},
  };
  for (int from = 0; from < kNumSequencePhases; ++from) {
    for (int to = 0; to < kNumSequencePhases; ++to) {
      const std::pair edge(static_cast<SequencePhase>(from),
                           static_cast<SequencePhase>(to));
      EXPECT_EQ(IsLegalTransition(edge.first, edge.second),
                legal.contains(edge))
          << edge.first << " to " << edge.second;
    }
  }
}

GenerationRequest ThreeTokens() {
  GenerationRequest request;
  request.token_ids = {5, 6, 7};
  request.original_prompt_tokens = 2;
  request.stop_token_ids = {9};
  return request;
}

TEST(SequenceTest, ATransitionThatIsNotLegalDies) {
  SequenceMetadata sequence(ThreeTokens(), nullptr, absl::UnixEpoch());
  EXPECT_DEATH(sequence.SetPhase(SequencePhase::kDecoding), "from waiting");
}

TEST(SequenceTest, ResumedTokensCountAsOutput) {
  SequenceMetadata sequence(ThreeTokens(), nullptr, absl::UnixEpoch());
  EXPECT_EQ(sequence.num_tokens(), 3u);
  EXPECT_EQ(sequence.output_tokens(), 1u);
}

TEST(SequenceTest, AStopTokenGoesBeforeTheLength) {
  SequenceMetadata sequence(ThreeTokens(), nullptr, absl::UnixEpoch());
  sequence.max_total_tokens = 4;
  EXPECT_EQ(FinishReasonOf(sequence), std::nullopt);
  sequence.tokens.push_back(8);
  EXPECT_EQ(FinishReasonOf(sequence), FinishReason::kLength);
  sequence.tokens.back() = 9;
  EXPECT_EQ(FinishReasonOf(sequence), FinishReason::kStopToken);
}

}  // namespace
}  // namespace baton
