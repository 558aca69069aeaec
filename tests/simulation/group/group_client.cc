#include "tests/simulation/group/group_client.h"

#include <utility>

#include "base/logging.h"
#include "tests/fakes/fake_rank.h"
#include "tests/simulation/group/light_step_executor.h"

namespace baton {
namespace {

GroupRequest MakeLightRequest(uint64_t seed, uint32_t prompt_tokens,
                              uint32_t new_tokens) {
  GroupRequest made;
  made.request.sampling.seed = seed;
  made.request.original_prompt_tokens = prompt_tokens;
  made.request.max_tokens = new_tokens;
  for (uint32_t i = 0; i < prompt_tokens; ++i) {
    made.request.token_ids.push_back(LightTokenAt(seed, i));
  }
  for (uint32_t i = 0; i < new_tokens; ++i) {
    made.expected.push_back(LightTokenAt(seed, prompt_tokens + i));
  }
  return made;
}

GroupRequest MakeHashedRequest(uint64_t counter, uint32_t prompt_tokens,
                               uint32_t new_tokens) {
  GroupRequest made;
  made.request = MakeRequest(counter, prompt_tokens, new_tokens);
  made.expected = ExpectedOf({}, made.request).tokens;
  return made;
}

}  // namespace

std::vector<GroupRequest> MakeGroupRequests(const GroupRequestOptions& options,
                                            std::mt19937_64* random) {
  std::vector<GroupRequest> requests;
  for (uint32_t i = 0; i < options.count; ++i) {
    const auto prompt_tokens =
        static_cast<uint32_t>(1 + (*random)() % options.max_prompt_tokens);
    const auto new_tokens =
        static_cast<uint32_t>(1 + (*random)() % options.max_new_tokens);
    const uint64_t seed = (*random)() >> 16;
    requests.push_back(options.hashes_kv
                           ? MakeHashedRequest(seed, prompt_tokens, new_tokens)
                           : MakeLightRequest(seed, prompt_tokens, new_tokens));
  }
  return requests;
}

GenerationRequest GroupClient::Submit(uint32_t rank) {
  CHECK(state_ == State::kOutside);
  state_ = State::kInside;
  rank_ = rank;
  tokens_here_ = 0;
  ++num_submits_;
  GenerationRequest request = wanted_->request;
  request.id = id_;
  request.attempt = num_submits_;
  request.token_ids.insert(request.token_ids.end(), wanted_->expected.begin(),
                           wanted_->expected.begin() + received_);
  return request;
}

void GroupClient::Leave() {
  CHECK(state_ == State::kInside && lost_);
  lost_ = false;
  state_ = aborted_ ? State::kDone : State::kOutside;
}

void GroupClient::OnKvHandle(const KvHandle&) { CHECK(false) << id_; }

void GroupClient::OnProgress(uint32_t) { CHECK(false) << id_; }

void GroupClient::OnPromptLogprobs(const ScoredTokens&) {
  CHECK(wanted_->request.prompt_logprobs_from.has_value()) << id_;
}

void GroupClient::OnTokens(const ScoredTokens& scored) {
  if (lost_) return;
  CHECK(state_ == State::kInside);
  CHECK_EQ(scored.first_index, received_) << "request " << id_;
  for (const SampledToken& token : scored.tokens) {
    CHECK_LT(received_, wanted_->expected.size()) << "request " << id_;
    CHECK_EQ(token.token_id, wanted_->expected[received_])
        << "request " << id_ << " token " << received_;
    ++received_;
    ++tokens_here_;
  }
  ++*progress_;
}

void GroupClient::OnFinished(const GenerationOutcome& outcome) {
  if (lost_) return;
  CHECK(state_ == State::kInside) << "request " << id_ << " ends twice";
  ++*progress_;
  switch (outcome.status.code()) {
    case absl::StatusCode::kOk:
      CHECK_EQ(received_, wanted_->expected.size()) << "request " << id_;
      state_ = State::kDone;
      return;
    case absl::StatusCode::kUnavailable:
      // It had its last token, and the end came with the group's.
      CHECK_LT(received_, wanted_->expected.size()) << "request " << id_;
      state_ = aborted_ ? State::kDone : State::kOutside;
      return;
    case absl::StatusCode::kCancelled:
      CHECK(aborted_) << "request " << id_;
      state_ = State::kDone;
      return;
    default:
      CHECK(false) << "request " << id_ << " " << outcome.status.ToString();
  }
}

}  // namespace baton
