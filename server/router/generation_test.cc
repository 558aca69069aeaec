#include "server/router/generation.h"

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/router/generation_for_test.h"

namespace baton {
namespace {

TEST(GenerationPhaseTest, MovesOnlyAlongTheTable) {
  using enum GenerationPhase;
  const std::set<std::pair<GenerationPhase, GenerationPhase>> legal = {
      {kQueued, kRunning}, {kQueued, kFinished}, {kRunning, kFinished}};
  for (GenerationPhase from : {kQueued, kRunning, kFinished}) {
    for (GenerationPhase to : {kQueued, kRunning, kFinished}) {
      EXPECT_EQ(IsLegalTransition(from, to), legal.contains({from, to}))
          << static_cast<int>(from) << " to " << static_cast<int>(to);
    }
  }
}

using enum AttemptPhase;

TEST_F(GenerationTest, GoesThroughPrefillAndDecodeToTheEnd) {
  Make(Plan());
  Dispatch();
  EXPECT_EQ(attempt().phase(), kPrefilling);
  EXPECT_EQ(Handle("opaque"), GenerationActions{.start_decode = 0});
  EXPECT_EQ(DecodeRequest().kv_handle(), "opaque");
  EXPECT_EQ(attempt().phase(), kDecoding);
  now_ += absl::Seconds(1);
  EXPECT_EQ(FirstToken(), kSend);
  EXPECT_EQ(TakeText(), "a");
  EXPECT_EQ(Released(), kNothing);
  EXPECT_EQ(PrefillEnds(), kNothing);
  EXPECT_EQ(Tokens(0, {Letter(0)}), kNothing)
      << "known from the prefill server";
  EXPECT_EQ(Tokens(1, {Letter(1), Letter(2), Letter(3)}), kSend);
  EXPECT_EQ(TakeText(), "bcd");
  now_ += absl::Seconds(1);
  EXPECT_EQ(Finished(4), kSendAndFinish);
  EXPECT_EQ(generation_->phase(), GenerationPhase::kFinished);
  EXPECT_TRUE(generation_->status().ok());
  const v1::GenerateFinished& finished = Told();
  EXPECT_EQ(finished.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finished.seed(), 42u);
  EXPECT_EQ(finished.fingerprint(), "f");
  EXPECT_EQ(finished.usage().prompt_tokens(), 3u);
  EXPECT_EQ(finished.usage().completion_tokens(), 4u);
  EXPECT_EQ(finished.usage().cached_tokens(), 2u);
  EXPECT_EQ(finished.usage().decode_cached_tokens(), 3u);
  EXPECT_EQ(finished.timing().queue_seconds(), 1.5);
  EXPECT_EQ(finished.timing().prefill_seconds(), 3);
  EXPECT_EQ(finished.timing().ttft_seconds(), 2);
  EXPECT_EQ(finished.timing().total_seconds(), 3);
  EXPECT_EQ(finished.timing().kv_transfer_bytes(), 77u);
}

TEST_F(GenerationTest, TellsTheWorkersWhatThePlanSays) {
  Make(Plan());
  Dispatch();
  const v1::WorkerRequest request = PrefillRequest();
  EXPECT_EQ(request.id().router_nonce(), 1234u);
  EXPECT_EQ(request.id().counter(), 101u);
  EXPECT_EQ(request.token_ids_size(), 3);
  EXPECT_EQ(request.original_prompt_tokens(), 3u);
  EXPECT_EQ(request.sampling().temperature(), 1);
  EXPECT_EQ(request.sampling().top_p(), 1);
  EXPECT_EQ(request.sampling().seed(), 42u);
  EXPECT_EQ(request.max_tokens(), 4u);
  EXPECT_EQ(request.stop_token_ids_size(), 2);
  EXPECT_EQ(request.num_eos_token_ids(), 1u);
}

TEST_F(GenerationTest, WaitsForThePrefillsEndWithinTheGrace) {
  Make(Plan());
  Dispatch();
  Handle();
  EXPECT_EQ(Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)}),
            (GenerationActions{.start_grace = 0, .send = true}));
  EXPECT_EQ(TakeText(), "abcd");
  EXPECT_EQ(Finished(4), kNothing);
  EXPECT_EQ(attempt().phase(), kReleasing);
  EXPECT_EQ(Released(), kNothing);
  EXPECT_EQ(PrefillEnds(), kSendAndFinish);
  EXPECT_EQ(Told().usage().cached_tokens(), 2u);
}

TEST_F(GenerationTest, EndsThePrefillWhenTheGraceIsOver) {
  Make(Plan());
  Dispatch();
  Handle();
  Tokens(0, {Letter(0)});
  EXPECT_EQ(TakeText(), "a");
  EXPECT_EQ(generation_->OnGraceEnded(0, now_),
            GenerationActions{.end_prefill = {0}});
  EXPECT_EQ(PrefillEnds(absl::CancelledError()), kNothing);
  Tokens(1, {Letter(1), Letter(2), Letter(3)});
  EXPECT_EQ(TakeText(), "bcd");
  EXPECT_EQ(Finished(4), kSendAndFinish);
  EXPECT_TRUE(generation_->status().ok());
}

TEST_F(GenerationTest, EndsWithoutThePrefillsWordWhenTheGraceIsOver) {
  Make(Plan());
  Dispatch();
  Handle();
  Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)});
  EXPECT_EQ(TakeText(), "abcd");
  Finished(4);
  EXPECT_EQ(
      generation_->OnGraceEnded(0, now_),
      (GenerationActions{.end_prefill = {0}, .send = true, .finish = true}));
  EXPECT_TRUE(generation_->status().ok());
  EXPECT_FALSE(Told().timing().has_prefill_seconds());
}

TEST_F(GenerationTest, UsesAUnifiedWorkersWord) {
  Make(Plan());
  Dispatch(/*unified=*/true);
  EXPECT_EQ(Tokens(0, {Letter(0), kEos}), kSend);
  EXPECT_EQ(TakeText(), "a") << "EOS has no text";
  EXPECT_EQ(Finished(2, v1::WORKER_FINISH_REASON_STOP_TOKEN), kSendAndFinish);
  const v1::GenerateFinished& finished = Told();
  EXPECT_EQ(finished.finish_reason(), v1::FINISH_REASON_EOS);
  EXPECT_EQ(finished.stop_token_id(), kEos);
  EXPECT_EQ(finished.usage().cached_tokens(), 1u);
  EXPECT_EQ(finished.usage().decode_cached_tokens(), 0u);
  EXPECT_EQ(finished.timing().prefill_seconds(), 9);
  EXPECT_FALSE(finished.timing().has_kv_transfer_bytes());
}

TEST_F(GenerationTest, EndsAtAStopStringAndEndsBothCalls) {
  GenerationPlan plan = Plan();
  plan.stop_strings = {"bc"};
  Make(plan);
  Dispatch();
  Handle();
  EXPECT_EQ(Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)}),
            (GenerationActions{.end_prefill = {0},
                               .end_decode = {0},
                               .send = true,
                               .finish = true}));
  EXPECT_EQ(TakeText(), "a");
  EXPECT_EQ(Told().finish_reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(Told().stop_string(), "bc");
  EXPECT_EQ(Told().usage().completion_tokens(), 3u);
}

TEST_F(GenerationTest, EndsAtAStopStringInThePrefillServersToken) {
  GenerationPlan plan = Plan();
  plan.stop_strings = {"a"};
  Make(plan);
  Dispatch();
  EXPECT_EQ(
      FirstToken(),
      (GenerationActions{.end_prefill = {0}, .send = true, .finish = true}))
      << "no decode call is there to end";
}

// --- Workers that break the contract.

TEST_F(GenerationTest, CallsABrokenContractInternal) {
  const std::vector<std::pair<const char*, std::function<void()>>> cases = {
      {"a gap", [this] { Tokens(1, {Letter(1)}); }},
      {"too few log-probabilities",
       [this] {
         v1::DecodeResponse message;
         FillChunk(0, {Letter(0)}, message.mutable_chunk());
         message.mutable_chunk()->clear_logprobs();
         FromDecode(message);
       }},
      {"another token for a known index",
       [this] {
         Tokens(0, {Letter(0)});
         Tokens(0, {Letter(1)});
       }},
      {"a token past max_tokens",
       [this] {
         Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3), Letter(4)});
       }},
      {"a token past a stop token",
       [this] {
         Tokens(0, {9, Letter(1)});
       }},
      {"another sample",
       [this] {
         v1::DecodeResponse message;
         FillChunk(0, {Letter(0)}, message.mutable_chunk());
         message.mutable_chunk()->set_sample_index(1);
         FromDecode(message);
       }},
      {"an end before the end",
       [this] {
         Tokens(0, {Letter(0)});
         Finished(1);
       }},
      {"an end with tokens missing",
       [this] {
         Tokens(0, {Letter(0), 9});
         Finished(3, v1::WORKER_FINISH_REASON_STOP_TOKEN);
       }},
      {"a stop token that nobody saw",
       [this] {
         Tokens(0, {Letter(0)});
         Finished(1, v1::WORKER_FINISH_REASON_STOP_TOKEN);
       }},
      {"a second handle", [this] { Handle(); }},
      {"a decode call without an end",
       [this] { DecodeEnds(absl::OkStatus()); }},
  };
  for (const auto& [name, break_it] : cases) {
    SCOPED_TRACE(name);
    Make(Plan());
    Dispatch();
    Handle();
    break_it();
    ASSERT_EQ(generation_->phase(), GenerationPhase::kFinished);
    EXPECT_TRUE(absl::IsInternal(generation_->status()))
        << generation_->status();
  }
}

TEST_F(GenerationTest, CallsAPrefillWithoutAHandleInternal) {
  Make(Plan());
  Dispatch();
  EXPECT_EQ(PrefillEnds(), kFinish);
  EXPECT_TRUE(absl::IsInternal(generation_->status()));
}

}  // namespace
}  // namespace baton
