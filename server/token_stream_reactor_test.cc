#include "server/token_stream_reactor.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

v1::DecodeResponse Chunk(uint32_t first, std::vector<uint32_t> tokens) {
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

TEST(TokenStreamTraitsTest, BytesGrowWithTokensAndHandles) {
  EXPECT_GE(TokenStreamTraits::Bytes(Chunk(0, std::vector<uint32_t>(100))),
            800u);
  v1::PrefillResponse handle;
  handle.set_kv_handle(std::string(1000, 'h'));
  EXPECT_GE(TokenStreamTraits::Bytes(handle), 1000u);
}

}  // namespace
}  // namespace baton
