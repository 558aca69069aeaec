#include "tests/simulation/system/simulated_client.h"

#include <utility>

#include "base/logging.h"

namespace baton {

void SimulatedClient::Start(EventLoop* loop, CallNetwork* calls,
                            SimulatedRouter* router) {
  loop_ = loop;
  answers_.resize(request_.samples.size());
  if (request_.deadline.has_value()) {
    deadline_ = loop->now() + *request_.deadline;
  }
  call_ = calls->Begin(
      process_, router->id(),
      [this, router](SimulatedCall* call) {
        router->Accept(request_.plan,
                       {call, [this](v1::GenerateResponse* message) {
                          OnMessage(*message);
                        }});
      },
      deadline_, [this](const absl::Status& status) { OnEnd(status); });
  if (request_.cancelled_after.has_value()) {
    loop->After(*request_.cancelled_after, [this] {
      if (has_ended()) return;
      has_cancelled_ = true;
      call_->Cancel();
    });
  }
  if (request_.reads_slowly) ReadSlowly();
}

void SimulatedClient::ReadSlowly() {
  if (has_ended()) return;
  reads_ = !reads_;
  call_->SetReading(reads_);
  const absl::Duration longest = absl::Milliseconds(reads_ ? 5 : 200);
  loop_->After(loop_->dice().Between(absl::ZeroDuration(), longest),
               [this] { ReadSlowly(); });
}

uint64_t SimulatedClient::num_tokens() const {
  uint64_t sum = 0;
  for (const Answer& answer : answers_) sum += answer.tokens.size();
  return sum;
}

void SimulatedClient::OnMessage(const v1::GenerateResponse& message) {
  CHECK(!has_ended());
  if (message.has_prompt_logprobs()) {
    OnPrompt(message.prompt_logprobs());
  } else if (message.has_chunk()) {
    OnChunk(message.chunk());
  } else {
    OnFinished(message.finished());
  }
}

void SimulatedClient::OnPrompt(const v1::PromptLogprobs& prompt) {
  CHECK_EQ(num_tokens(), 0u) << "the prompt behind the answer";
  CHECK_EQ(prompt.first_token_index(),
           *request_.plan.prompt_logprobs_from + num_prompt_logprobs_);
  for (const float logprob : prompt.logprobs()) {
    CHECK_LT(num_prompt_logprobs_, request_.prompt_logprobs.size());
    CHECK_EQ(logprob, request_.prompt_logprobs[num_prompt_logprobs_++]);
  }
}

void SimulatedClient::OnChunk(const v1::GenerateChunk& chunk) {
  CHECK_LT(chunk.sample_index(), answers_.size());
  Answer& answer = answers_[chunk.sample_index()];
  const ExpectedSample& expected = request_.samples[chunk.sample_index()];
  CHECK(!answer.finished) << "more of a sample that has ended";
  if (chunk.token_ids_size() > 0) {
    CHECK_EQ(chunk.first_token_index(), answer.tokens.size())
        << "request " << number_ << ": a gap, or a token twice";
  }
  CHECK_EQ(chunk.logprobs_size(), chunk.token_ids_size());
  for (int i = 0; i < chunk.token_ids_size(); ++i) {
    const size_t index = answer.tokens.size();
    CHECK_LT(index, expected.tokens.size())
        << "request " << number_ << ": tokens behind the end";
    CHECK_EQ(chunk.token_ids(i), expected.tokens[index])
        << "request " << number_ << ": a wrong token";
    CHECK_EQ(chunk.logprobs(i), expected.logprobs[index])
        << "request " << number_ << ": a wrong log-probability";
    answer.tokens.push_back(chunk.token_ids(i));
  }
  answer.text += chunk.text();
}

void SimulatedClient::OnFinished(const v1::GenerateFinished& finished) {
  CHECK_LT(finished.sample_index(), answers_.size());
  Answer& answer = answers_[finished.sample_index()];
  const ExpectedSample& expected = request_.samples[finished.sample_index()];
  CHECK(!std::exchange(answer.finished, true)) << "a second end";
  CHECK_EQ(answer.tokens.size(), expected.tokens.size())
      << "request " << number_ << ": tokens are missing";
  CHECK_EQ(answer.text, expected.text) << "request " << number_;
  CHECK_EQ(finished.finish_reason(), expected.reason);
  CHECK_EQ(finished.usage().completion_tokens(), expected.tokens.size());
  CHECK_EQ(finished.usage().prompt_tokens(), request_.plan.prompt_ids.size());
}

void SimulatedClient::OnEnd(const absl::Status& status) {
  CHECK(!has_ended());
  status_ = status;
  loop_->Note("client told", number_, num_tokens());
  if (!status.ok()) return;
  for (const Answer& answer : answers_) {
    CHECK(answer.finished) << "request " << number_ << ": OK without an end";
  }
  CHECK_EQ(num_prompt_logprobs_, request_.prompt_logprobs.size());
}

}  // namespace baton
