#include "server/router/generation.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

using enum GenerationPhase;

constexpr GenerationPhase kPhases[] = {kQueued, kPrefilling, kDecoding,
                                       kReleasing, kFinished};
constexpr WorkerId kPrefillWorker(0);
constexpr WorkerId kDecodeWorker(1);
constexpr uint32_t kEos = 1;

TEST(GenerationPhaseTest, MovesOnlyAlongTheTable) {
  const std::vector<std::pair<GenerationPhase, GenerationPhase>> legal = {
      {kQueued, kPrefilling},  {kQueued, kDecoding},
      {kQueued, kFinished},    {kPrefilling, kDecoding},
      {kPrefilling, kQueued},  {kPrefilling, kFinished},
      {kDecoding, kReleasing}, {kDecoding, kQueued},
      {kDecoding, kFinished},  {kReleasing, kFinished}};
  for (GenerationPhase from : kPhases) {
    for (GenerationPhase to : kPhases) {
      const bool is_legal = std::find(legal.begin(), legal.end(),
                                      std::pair(from, to)) != legal.end();
      EXPECT_EQ(IsLegalTransition(from, to), is_legal)
          << static_cast<int>(from) << " to " << static_cast<int>(to);
    }
  }
}

const Tokenizer& DemoTokenizer() {
  static const Tokenizer* const tokenizer =
      Tokenizer::Load("models/tiny-deepseek-v3")->release();
  return *tokenizer;
}

// Token i of the answer: "abc...".
uint32_t Letter(uint32_t i) {
  static const uint32_t first = DemoTokenizer().Encode("a", false)->at(0);
  return first + i;
}

class GenerationTest : public ::testing::Test {
 protected:
  static GenerationPlan Plan() {
    GenerationPlan plan;
    plan.prompt_ids = {5, 6, 7};
    plan.sampling.seed = 42;
    plan.max_tokens = 4;
    plan.stop_token_ids = {kEos, 9};
    plan.num_eos_token_ids = 1;
    return plan;
  }

  void Make(GenerationPlan plan, uint32_t max_retries = 2) {
    generation_ = std::make_unique<Generation>(
        std::move(plan), Generation::Options{.router_nonce = 1234,
                                             .max_retries = max_retries,
                                             .arrival = now_,
                                             .tokenizer = &DemoTokenizer()});
  }
  // Up to kPrefilling, or kDecoding at a unified worker.
  void Dispatch(bool unified = false) {
    EXPECT_EQ(generation_->OnArrived(), GenerationActions{.queue = true});
    EXPECT_EQ(generation_->OnAdmitted(now_ += absl::Seconds(1)),
              GenerationActions{.find_route = true});
    TakeRoute(unified);
  }
  void TakeRoute(bool unified = false) {
    Route route = {
        .prefill = kPrefillWorker, .decode = kDecodeWorker, .fingerprint = "f"};
    if (unified) route.prefill.reset();
    EXPECT_EQ(generation_->OnRoute(route, ++counter_),
              unified ? GenerationActions{.start_decode = true}
                      : GenerationActions{.start_prefill = true});
  }
  GenerationActions Handle(const std::string& handle = "kv") {
    v1::PrefillResponse message;
    message.set_kv_handle(handle);
    return FromPrefill(&message);
  }
  GenerationActions FromPrefill(v1::PrefillResponse* message) {
    return generation_->OnPrefillMessage(generation_->attempt(), message, now_);
  }
  GenerationActions FirstToken() {
    v1::PrefillResponse message;
    FillChunk(0, {Letter(0)}, message.mutable_first_tokens());
    return FromPrefill(&message);
  }
  GenerationActions Released() {
    v1::PrefillResponse message;
    message.mutable_released()->set_cached_tokens(2);
    message.mutable_released()->set_prefill_seconds(3);
    message.mutable_released()->set_queue_seconds(0.5);
    return FromPrefill(&message);
  }
  GenerationActions PrefillEnds(const absl::Status& status = absl::OkStatus()) {
    return generation_->OnPrefillEnd(generation_->attempt(), status, now_);
  }
  GenerationActions Tokens(uint32_t first, const std::vector<uint32_t>& ids) {
    v1::DecodeResponse message;
    FillChunk(first, ids, message.mutable_chunk());
    return FromDecode(message);
  }
  GenerationActions Finished(
      uint32_t completion_tokens,
      v1::WorkerFinishReason reason = v1::WORKER_FINISH_REASON_LENGTH) {
    v1::DecodeResponse message;
    v1::DecodeFinished* const finished = message.mutable_finished();
    finished->set_attempt(generation_->attempt());
    finished->set_completion_tokens(completion_tokens);
    finished->set_finish_reason(reason);
    finished->set_prefill_seconds(9);
    finished->set_cached_tokens(1);
    finished->set_kv_transfer_bytes(77);
    return FromDecode(message);
  }
  GenerationActions FromDecode(const v1::DecodeResponse& message) {
    return generation_->OnDecodeMessage(generation_->attempt(), message, now_);
  }
  GenerationActions DecodeEnds(const absl::Status& status) {
    return generation_->OnDecodeEnd(generation_->attempt(), status, now_);
  }
  std::string TakeText() {
    v1::GenerateChunk chunk;
    chunk.Swap(generation_->chunk());
    return chunk.text();
  }
  void FillChunk(uint32_t first, const std::vector<uint32_t>& ids,
                 v1::TokenChunk* chunk) {
    chunk->set_attempt(generation_->attempt());
    chunk->set_first_token_index(first);
    for (uint32_t id : ids) {
      chunk->add_token_ids(id);
      chunk->add_logprobs(-1);
    }
  }

  absl::Time now_ = absl::UnixEpoch();
  uint64_t counter_ = 100;
  std::unique_ptr<Generation> generation_;
};

const GenerationActions kNothing;
const GenerationActions kSend = {.send_chunk = true};
const GenerationActions kFinish = {.finish = true};

TEST_F(GenerationTest, GoesThroughPrefillAndDecodeToTheEnd) {
  Make(Plan());
  Dispatch();
  EXPECT_EQ(generation_->phase(), kPrefilling);
  EXPECT_EQ(Handle("opaque"), GenerationActions{.start_decode = true});
  EXPECT_EQ(generation_->kv_handle(), "opaque");
  EXPECT_EQ(generation_->phase(), kDecoding);
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
  EXPECT_EQ(Finished(4), kFinish);
  EXPECT_EQ(generation_->phase(), kFinished);
  EXPECT_TRUE(generation_->status().ok());
  const v1::GenerateFinished& finished = generation_->finished();
  EXPECT_EQ(finished.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finished.seed(), 42u);
  EXPECT_EQ(finished.fingerprint(), "f");
  EXPECT_EQ(finished.usage().prompt_tokens(), 3u);
  EXPECT_EQ(finished.usage().completion_tokens(), 4u);
  EXPECT_EQ(finished.usage().cached_tokens(), 2u);
  EXPECT_EQ(finished.timing().queue_seconds(), 1.5);
  EXPECT_EQ(finished.timing().prefill_seconds(), 3);
  EXPECT_EQ(finished.timing().ttft_seconds(), 2);
  EXPECT_EQ(finished.timing().total_seconds(), 3);
  EXPECT_EQ(finished.timing().kv_transfer_bytes(), 77u);
}

TEST_F(GenerationTest, TellsTheWorkersWhatThePlanSays) {
  Make(Plan());
  Dispatch();
  const v1::WorkerRequest request = generation_->MakeRequest();
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
            (GenerationActions{.start_grace = true, .send_chunk = true}));
  EXPECT_EQ(TakeText(), "abcd");
  EXPECT_EQ(Finished(4), kNothing);
  EXPECT_EQ(generation_->phase(), kReleasing);
  EXPECT_EQ(Released(), kNothing);
  EXPECT_EQ(PrefillEnds(), kFinish);
  EXPECT_EQ(generation_->finished().usage().cached_tokens(), 2u);
}

TEST_F(GenerationTest, EndsThePrefillWhenTheGraceIsOver) {
  Make(Plan());
  Dispatch();
  Handle();
  Tokens(0, {Letter(0)});
  EXPECT_EQ(generation_->OnGraceEnded(0, now_),
            GenerationActions{.end_prefill = true});
  EXPECT_EQ(PrefillEnds(absl::CancelledError()), kNothing);
  Tokens(1, {Letter(1), Letter(2), Letter(3)});
  EXPECT_EQ(TakeText(), "abcd");
  EXPECT_EQ(Finished(4), kFinish);
  EXPECT_TRUE(generation_->status().ok());
}

TEST_F(GenerationTest, EndsWithoutThePrefillsWordWhenTheGraceIsOver) {
  Make(Plan());
  Dispatch();
  Handle();
  Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)});
  Finished(4);
  EXPECT_EQ(generation_->OnGraceEnded(0, now_),
            (GenerationActions{.end_prefill = true, .finish = true}));
  EXPECT_TRUE(generation_->status().ok());
  EXPECT_FALSE(generation_->finished().timing().has_prefill_seconds());
}

TEST_F(GenerationTest, UsesAUnifiedWorkersWord) {
  Make(Plan());
  Dispatch(/*unified=*/true);
  EXPECT_EQ(Tokens(0, {Letter(0), kEos}), kSend);
  EXPECT_EQ(TakeText(), "a") << "EOS has no text";
  EXPECT_EQ(Finished(2, v1::WORKER_FINISH_REASON_STOP_TOKEN), kFinish);
  const v1::GenerateFinished& finished = generation_->finished();
  EXPECT_EQ(finished.finish_reason(), v1::FINISH_REASON_EOS);
  EXPECT_EQ(finished.stop_token_id(), kEos);
  EXPECT_EQ(finished.usage().cached_tokens(), 1u);
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
            (GenerationActions{.end_prefill = true,
                               .end_decode = true,
                               .send_chunk = true,
                               .finish = true}));
  EXPECT_EQ(TakeText(), "a");
  EXPECT_EQ(generation_->finished().finish_reason(),
            v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(generation_->finished().stop_string(), "bc");
  EXPECT_EQ(generation_->finished().usage().completion_tokens(), 3u);
}

TEST_F(GenerationTest, EndsAtAStopStringInThePrefillServersToken) {
  GenerationPlan plan = Plan();
  plan.stop_strings = {"a"};
  Make(plan);
  Dispatch();
  EXPECT_EQ(FirstToken(),
            (GenerationActions{
                .end_prefill = true, .send_chunk = true, .finish = true}))
      << "no decode call is there to end";
}

// --- What fails.

TEST_F(GenerationTest, TriesAgainOnOtherWorkersUntilItGivesUp) {
  Make(Plan(), /*max_retries=*/1);
  Dispatch();
  Handle();
  EXPECT_EQ(PrefillEnds(absl::UnavailableError("gone")),
            (GenerationActions{.end_decode = true,
                               .suspect = kPrefillWorker,
                               .find_route = true,
                               .retry_reason = "unavailable"}));
  EXPECT_EQ(generation_->avoid(), std::vector<WorkerId>{kPrefillWorker});
  EXPECT_EQ(generation_->attempt(), 1u);
  TakeRoute();
  EXPECT_EQ(generation_->MakeRequest().attempt(), 1u);
  EXPECT_EQ(generation_->MakeRequest().id().counter(), 102u);
  EXPECT_EQ(Handle("kv 2"), GenerationActions{.start_decode = true});
  EXPECT_EQ(DecodeEnds(absl::UnavailableError("gone")),
            (GenerationActions{.end_prefill = true,
                               .end_decode = true,
                               .suspect = kDecodeWorker,
                               .finish = true}));
  EXPECT_TRUE(absl::IsUnavailable(generation_->status()));
  EXPECT_EQ(ErrorReason(generation_->status()), "WORKER_LOST");
}

TEST_F(GenerationTest, AvoidsBothEndsOfALostTransfer) {
  Make(Plan());
  Dispatch();
  Handle();
  EXPECT_EQ(DecodeEnds(absl::AbortedError("lost")),
            (GenerationActions{.end_prefill = true,
                               .end_decode = true,
                               .find_route = true,
                               .retry_reason = "kv_lost"}));
  EXPECT_EQ(generation_->avoid(),
            (std::vector<WorkerId>{kDecodeWorker, kPrefillWorker}));
}

TEST_F(GenerationTest, IgnoresEveryEventOfAnOlderAttempt) {
  Make(Plan());
  Dispatch();
  Handle();
  PrefillEnds(absl::UnavailableError("gone"));
  TakeRoute();
  v1::PrefillResponse handle;
  handle.set_kv_handle("stale");
  EXPECT_EQ(generation_->OnPrefillMessage(0, &handle, now_), kNothing);
  v1::DecodeResponse tokens;
  FillChunk(0, {Letter(3)}, tokens.mutable_chunk());
  EXPECT_EQ(generation_->OnDecodeMessage(0, tokens, now_), kNothing);
  EXPECT_EQ(generation_->OnDecodeEnd(0, absl::InternalError("x"), now_),
            kNothing);
  EXPECT_EQ(generation_->OnPrefillEnd(0, absl::OkStatus(), now_), kNothing);
  EXPECT_EQ(generation_->OnGraceEnded(0, now_), kNothing);
  EXPECT_EQ(generation_->phase(), kPrefilling);
}

TEST_F(GenerationTest, DoesNotTryAgainOnceATokenWasShown) {
  Make(Plan());
  Dispatch();
  Handle();
  FirstToken();
  const GenerationActions actions = DecodeEnds(absl::UnavailableError("gone"));
  EXPECT_TRUE(actions.finish);
  EXPECT_FALSE(actions.find_route);
  EXPECT_TRUE(absl::IsUnavailable(generation_->status()));
}

TEST_F(GenerationTest, IgnoresThePrefillsFailureOnceDecodeHasSpoken) {
  Make(Plan());
  Dispatch();
  Handle();
  Tokens(0, {Letter(0)});
  EXPECT_EQ(PrefillEnds(absl::UnavailableError("gone")), kNothing);
  EXPECT_EQ(generation_->phase(), kDecoding);
}

TEST_F(GenerationTest, PassesOtherErrorsOnAtOnce) {
  Make(Plan());
  Dispatch();
  EXPECT_EQ(PrefillEnds(absl::ResourceExhaustedError("full")), kFinish);
  EXPECT_TRUE(absl::IsResourceExhausted(generation_->status()));
}

TEST_F(GenerationTest, EndsInEveryPhaseWhenTheClientIsGone) {
  const absl::Status gone = absl::CancelledError("gone");
  Make(Plan());
  EXPECT_EQ(generation_->OnClientGone(gone, now_), kFinish);
  EXPECT_EQ(generation_->OnArrived(), kNothing);
  EXPECT_EQ(generation_->OnAdmitted(now_), kNothing);
  EXPECT_EQ(generation_->OnRoute({}, 1), kNothing) << "it came too late";
  EXPECT_EQ(generation_->OnClientGone(gone, now_), kNothing);

  Make(Plan());
  Dispatch();
  EXPECT_EQ(generation_->OnClientGone(gone, now_),
            (GenerationActions{.end_prefill = true, .finish = true}));

  Make(Plan());
  Dispatch();
  Handle();
  EXPECT_EQ(generation_->OnClientGone(gone, now_),
            (GenerationActions{
                .end_prefill = true, .end_decode = true, .finish = true}));

  Make(Plan());
  Dispatch();
  Handle();
  Tokens(0, {Letter(0), Letter(1), Letter(2), Letter(3)});
  Finished(4);
  EXPECT_EQ(generation_->phase(), kReleasing);
  EXPECT_EQ(generation_->OnClientGone(gone, now_),
            (GenerationActions{.end_prefill = true, .finish = true}));
  EXPECT_EQ(PrefillEnds(), kNothing);
}

TEST_F(GenerationTest, EndsWhenNobodyCanServe) {
  Make(Plan());
  generation_->OnArrived();
  generation_->OnAdmitted(now_);
  EXPECT_EQ(generation_->OnRefused(absl::UnavailableError("nobody"), now_),
            kFinish);
  EXPECT_TRUE(absl::IsUnavailable(generation_->status()));
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
    ASSERT_EQ(generation_->phase(), kFinished);
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
