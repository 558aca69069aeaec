// What the tests of Generation share: one request, and shorthand for events.
#ifndef BATON_SERVER_ROUTER_GENERATION_FOR_TEST_H_
#define BATON_SERVER_ROUTER_GENERATION_FOR_TEST_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/router/generation.h"
#include "server/router/validate.h"
#include "server/router/worker_state.h"
#include "server/text/tokenizer.h"

namespace baton {

inline constexpr WorkerId kPrefillWorker(0);
inline constexpr WorkerId kDecodeWorker(1);
inline constexpr uint32_t kEos = 1;

inline const Tokenizer& DemoTokenizer() {
  static const Tokenizer* const tokenizer =
      Tokenizer::Load("models/tiny-deepseek-v3")->release();
  return *tokenizer;
}

// Token i of the answer: "abc...".
inline uint32_t Letter(uint32_t i) {
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
    texts_.clear();
    told_.clear();
    generation_ = std::make_unique<Generation>(
        std::move(plan), Generation::Options{.router_nonce = 1234,
                                             .max_retries = max_retries,
                                             .arrival = now_,
                                             .tokenizer = &DemoTokenizer()});
  }
  // Its turn, and workers: an attempt kPrefilling, or kDecoding at a unified
  // worker.
  void Dispatch(bool unified = false) {
    EXPECT_EQ(generation_->OnArrived(), GenerationActions{.queue = true});
    EXPECT_EQ(generation_->OnAdmitted(now_ += absl::Seconds(1)),
              GenerationActions{.find_route = {0}});
    TakeRoute(unified);
  }
  // Of the newest attempt.
  void TakeRoute(bool unified = false) {
    attempt_ = generation_->num_attempts() - 1;
    Route route = {
        .prefill = kPrefillWorker, .decode = kDecodeWorker, .fingerprint = "f"};
    if (unified) route.prefill.reset();
    EXPECT_EQ(generation_->OnRoute(attempt_, route, ++counter_),
              unified ? GenerationActions{.start_decode = attempt_}
                      : GenerationActions{.start_prefill = attempt_});
  }
  const Attempt& attempt() const { return generation_->attempt(attempt_); }
  v1::WorkerRequest PrefillRequest() const {
    return generation_->MakePrefillRequest(attempt_).request();
  }
  v1::DecodeRequest DecodeRequest() const {
    return generation_->MakeDecodeRequest(attempt_);
  }
  GenerationActions Handle(const std::string& handle = "kv") {
    v1::PrefillResponse message;
    message.set_kv_handle(handle);
    return FromPrefill(&message);
  }
  GenerationActions FromPrefill(v1::PrefillResponse* message) {
    return generation_->OnPrefillMessage(attempt_, message, now_);
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
    return generation_->OnPrefillEnd(attempt_, status, now_);
  }
  GenerationActions Tokens(uint32_t first, const std::vector<uint32_t>& ids,
                           uint32_t sample_index = 0) {
    v1::DecodeResponse message;
    FillChunk(first, ids, message.mutable_chunk());
    message.mutable_chunk()->set_sample_index(sample_index);
    return FromDecode(message);
  }
  GenerationActions Finished(
      uint32_t completion_tokens,
      v1::WorkerFinishReason reason = v1::WORKER_FINISH_REASON_LENGTH,
      uint32_t sample_index = 0) {
    v1::DecodeResponse message;
    v1::DecodeFinished* const finished = message.mutable_finished();
    finished->set_sample_index(sample_index);
    finished->set_attempt(attempt_);
    finished->set_completion_tokens(completion_tokens);
    finished->set_finish_reason(reason);
    finished->set_prefill_seconds(9);
    finished->set_cached_tokens(1);
    finished->set_decode_cached_tokens(9);  // More than the prompt has.
    finished->set_kv_transfer_bytes(77);
    return FromDecode(message);
  }
  GenerationActions FromDecode(const v1::DecodeResponse& message) {
    return generation_->OnDecodeMessage(attempt_, message, now_);
  }
  GenerationActions DecodeEnds(const absl::Status& status) {
    return generation_->OnDecodeEnd(attempt_, status, now_);
  }
  // Text of the sample that came since the last time.
  std::string TakeText(uint32_t sample_index = 0) {
    TakeResponses();
    return std::exchange(texts_[sample_index], "");
  }
  // What the client was told of the sample's end; empty if nothing yet.
  const v1::GenerateFinished& Told(uint32_t sample_index = 0) {
    TakeResponses();
    return told_[sample_index];
  }
  bool IsTold(uint32_t sample_index) {
    TakeResponses();
    return told_.contains(sample_index);
  }
  void TakeResponses() {
    for (const v1::GenerateResponse& response : generation_->TakeResponses()) {
      if (response.has_chunk()) {
        const v1::GenerateChunk& chunk = response.chunk();
        EXPECT_FALSE(told_.contains(chunk.sample_index()));
        texts_[chunk.sample_index()] += chunk.text();
      } else if (response.has_finished()) {
        const uint32_t sample_index = response.finished().sample_index();
        EXPECT_FALSE(told_.contains(sample_index));
        told_[sample_index] = response.finished();
      } else {
        EXPECT_TRUE(texts_.empty()) << "the prompt behind the answer";
        prompt_tokens_ += response.prompt_logprobs().token_ids_size();
      }
    }
  }
  void FillChunk(uint32_t first, const std::vector<uint32_t>& ids,
                 v1::TokenChunk* chunk) {
    chunk->set_attempt(attempt_);
    chunk->set_first_token_index(first);
    for (uint32_t id : ids) {
      chunk->add_token_ids(id);
      chunk->add_logprobs(-1);
    }
  }

  absl::Time now_ = absl::UnixEpoch();
  uint64_t counter_ = 100;
  uint32_t attempt_ = 0;  // That events are of.
  std::unique_ptr<Generation> generation_;
  std::map<uint32_t, std::string> texts_;  // Of samples.
  std::map<uint32_t, v1::GenerateFinished> told_;
  int prompt_tokens_ = 0;
};

inline const GenerationActions kNothing;
inline const GenerationActions kSend = {.send = true};
// With an error, and nothing that waited; else with the ends of samples.
inline const GenerationActions kFinish = {.finish = true};
inline const GenerationActions kSendAndFinish = {.send = true, .finish = true};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_GENERATION_FOR_TEST_H_
