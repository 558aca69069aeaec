#include "server/token_messages.h"

#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

v1::DecodeResponse Chunk(uint32_t first, const std::vector<uint32_t>& tokens) {
  v1::DecodeResponse response;
  response.mutable_chunk()->set_sample_index(1);
  response.mutable_chunk()->set_attempt(2);
  response.mutable_chunk()->set_first_token_index(first);
  for (const uint32_t token : tokens) {
    response.mutable_chunk()->add_token_ids(token);
    response.mutable_chunk()->add_logprobs(-static_cast<float>(token));
  }
  return response;
}

TEST(TokenStreamTraitsTest, ConsecutiveChunksBecomeOne) {
  v1::DecodeResponse last = Chunk(3, {7, 8});
  v1::DecodeResponse next = Chunk(5, {9});
  ASSERT_TRUE(TokenStreamTraits::Merge(&last, next));
  EXPECT_EQ(last.SerializeAsString(), Chunk(3, {7, 8, 9}).SerializeAsString());
}

TEST(TokenStreamTraitsTest, AGapOrAnotherSampleOrAttemptIsNotMerged) {
  v1::DecodeResponse last = Chunk(3, {7, 8});
  v1::DecodeResponse gap = Chunk(6, {9});
  EXPECT_FALSE(TokenStreamTraits::Merge(&last, gap));
  v1::DecodeResponse other = Chunk(5, {9});
  other.mutable_chunk()->set_sample_index(0);
  EXPECT_FALSE(TokenStreamTraits::Merge(&last, other));
  other = Chunk(5, {9});
  other.mutable_chunk()->set_attempt(0);
  EXPECT_FALSE(TokenStreamTraits::Merge(&last, other));
  EXPECT_EQ(last.SerializeAsString(), Chunk(3, {7, 8}).SerializeAsString());
}

TEST(TokenStreamTraitsTest, TheEndStaysAMessageOfItsOwn) {
  v1::DecodeResponse last = Chunk(3, {7, 8});
  v1::DecodeResponse finished;
  finished.mutable_finished();
  EXPECT_FALSE(TokenStreamTraits::Merge(&last, finished));
  EXPECT_FALSE(TokenStreamTraits::Merge(&finished, last));
}

TEST(TokenStreamTraitsTest, NewerProgressReplacesOlderAndNothingElse) {
  v1::PrefillResponse last;
  last.mutable_progress()->set_computed_tokens(64);
  v1::PrefillResponse next;
  next.mutable_progress()->set_computed_tokens(128);
  ASSERT_TRUE(TokenStreamTraits::Merge(&last, next));
  EXPECT_EQ(last.progress().computed_tokens(), 128u);
  v1::PrefillResponse handle;
  handle.set_kv_handle("h");
  EXPECT_FALSE(TokenStreamTraits::Merge(&handle, last));
  EXPECT_FALSE(TokenStreamTraits::Merge(&last, handle));
}

v1::PrefillResponse Prompt(uint32_t first,
                           const std::vector<uint32_t>& tokens) {
  v1::PrefillResponse response;
  v1::PromptLogprobs& prompt = *response.mutable_prompt_logprobs();
  prompt.set_first_token_index(first);
  for (const uint32_t token : tokens) {
    prompt.add_token_ids(token);
    prompt.add_logprobs(-static_cast<float>(token));
    prompt.add_top_logprobs()->add_token_ids(token);
  }
  return response;
}

TEST(TokenStreamTraitsTest, ConsecutivePartsOfThePromptBecomeOne) {
  v1::PrefillResponse last = Prompt(3, {7, 8});
  v1::PrefillResponse next = Prompt(5, {9});
  ASSERT_TRUE(TokenStreamTraits::Merge(&last, next));
  EXPECT_EQ(last.SerializeAsString(), Prompt(3, {7, 8, 9}).SerializeAsString());
  EXPECT_FALSE(TokenStreamTraits::Merge(&last, next)) << "a gap";
  v1::PrefillResponse first_tokens;
  first_tokens.mutable_first_tokens();
  EXPECT_FALSE(TokenStreamTraits::Merge(&last, first_tokens));
  v1::PrefillResponse progress;
  progress.mutable_progress();
  EXPECT_FALSE(TokenStreamTraits::Merge(&last, progress));
  EXPECT_FALSE(TokenStreamTraits::Merge(&progress, last));
}

TEST(TokenStreamTraitsTest, AlternativesStayWithTheirTokensAndAreCounted) {
  v1::DecodeResponse last = Chunk(3, {7});
  last.mutable_chunk()->add_top_logprobs()->add_token_ids(70);
  const size_t bytes = TokenStreamTraits::Bytes(last);
  v1::DecodeResponse next = Chunk(4, {8});
  next.mutable_chunk()->add_top_logprobs()->add_token_ids(80);
  ASSERT_TRUE(TokenStreamTraits::Merge(&last, next));
  ASSERT_EQ(last.chunk().top_logprobs_size(), 2);
  EXPECT_EQ(last.chunk().top_logprobs(1).token_ids(0), 80u);
  EXPECT_GT(TokenStreamTraits::Bytes(last), bytes);
  EXPECT_GT(bytes, TokenStreamTraits::Bytes(Chunk(3, {7})));
}

TEST(TokenStreamTraitsTest, BytesGrowWithTokensAndHandles) {
  EXPECT_GE(TokenStreamTraits::Bytes(Chunk(0, std::vector<uint32_t>(100))),
            800u);
  v1::PrefillResponse handle;
  handle.set_kv_handle(std::string(1000, 'h'));
  EXPECT_GE(TokenStreamTraits::Bytes(handle), 1000u);
}

TEST(EndMessageTest, TellsOfADecodeAllThatTheRouterCounts) {
  GenerationOutcome outcome;
  outcome.reason = FinishReason::kStopToken;
  outcome.prompt_tokens = 1;
  outcome.cached_tokens = 2;
  outcome.decode_cached_tokens = 3;
  outcome.output_tokens = 4;
  outcome.queue_time = absl::Seconds(5);
  outcome.prefill_time = absl::Seconds(6);
  outcome.transfer_time = absl::Seconds(7);
  outcome.transfer_bytes = 8;
  const auto message =
      EndMessage<v1::DecodeResponse>({.index = 9, .attempt = 10}, outcome, {});
  const v1::DecodeFinished& finished = message.finished();
  EXPECT_EQ(finished.finish_reason(), v1::WORKER_FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(finished.prompt_tokens(), 1u);
  EXPECT_EQ(finished.cached_tokens(), 2u);
  EXPECT_EQ(finished.decode_cached_tokens(), 3u);
  EXPECT_EQ(finished.completion_tokens(), 4u);
  EXPECT_EQ(finished.queue_seconds(), 5);
  EXPECT_EQ(finished.prefill_seconds(), 6);
  EXPECT_EQ(finished.kv_transfer_seconds(), 7);
  EXPECT_EQ(finished.kv_transfer_bytes(), 8u);
  EXPECT_EQ(finished.sample_index(), 9u);
  EXPECT_EQ(finished.attempt(), 10u);
  EXPECT_TRUE(finished.has_load());
}

TEST(EndMessageTest, TellsOfAPrefillItsTimesAndWhatWasCached) {
  GenerationOutcome outcome;
  outcome.cached_tokens = 2;
  outcome.queue_time = absl::Seconds(5);
  outcome.prefill_time = absl::Seconds(6);
  const auto message = EndMessage<v1::PrefillResponse>({}, outcome, {});
  EXPECT_EQ(message.released().cached_tokens(), 2u);
  EXPECT_EQ(message.released().queue_seconds(), 5);
  EXPECT_EQ(message.released().prefill_seconds(), 6);
}

TEST(StatusForPeerTest, SaysWhoseFaultItIs) {
  const auto reason = [](const absl::Status& status) {
    return ErrorReason(status).value_or("");
  };
  const absl::Status cancelled = absl::CancelledError("aborted");
  EXPECT_EQ(StatusForPeer<v1::DecodeResponse>(cancelled, false), cancelled);
  EXPECT_EQ(reason(StatusForPeer<v1::DecodeResponse>(cancelled, true)),
            "DRAINING");
  const absl::Status aborted = absl::AbortedError("lost");
  EXPECT_EQ(StatusForPeer<v1::DecodeResponse>(aborted, false), aborted);
  EXPECT_EQ(reason(StatusForPeer<v1::PrefillResponse>(aborted, false)),
            "IMPORTER_LOST");
  EXPECT_EQ(reason(StatusForPeer<v1::PrefillResponse>(
                absl::UnavailableError("a rank"), false)),
            "GROUP_LOST");
  EXPECT_TRUE(StatusForPeer<v1::PrefillResponse>(absl::OkStatus(), true).ok());
}

}  // namespace
}  // namespace baton
