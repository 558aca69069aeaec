#include "server/cli/closed_loop.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "base/logging.h"

namespace baton {

// One request's stream. Deletes itself in OnDone.
class ClosedLoop::Call final
    : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Call(ClosedLoop* loop, v1::GenerateRequest request)
      : loop_(loop), request_(std::move(request)) {}

  void Start() {
    context_.set_deadline(std::chrono::system_clock::now() +
                          absl::ToChronoNanoseconds(loop_->options_.timeout));
    arrivals_.reserve(request_.stopping().max_tokens());
    sent_ = loop_->clock_.Now();
    loop_->stub_->async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_chunk()) {
      const int num_tokens = response_.chunk().token_ids_size();
      arrivals_.push_back(
          {loop_->clock_.Now(), static_cast<size_t>(num_tokens)});
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    const absl::Time ended =
        arrivals_.empty() ? loop_->clock_.Now() : arrivals_.back().time;
    loop_->OnEnded(status, MeasureTokens(sent_, ended, arrivals_));
    delete this;
  }

  ClosedLoop* const loop_;
  const v1::GenerateRequest request_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  absl::Time sent_;
  std::vector<TokenArrival> arrivals_;
};

ClosedLoop::ClosedLoop(ClosedLoopOptions options,
                       v1::InferenceService::Stub* stub,
                       MakeRequest make_request)
    : options_(options), stub_(stub), make_request_(std::move(make_request)) {}

ClosedLoop::~ClosedLoop() {
  absl::MutexLock lock(&mutex_);
  CHECK(started_ == ended_) << "a call of the loop is still running";
}

void ClosedLoop::Start() {
  for (uint32_t i = 0; i < options_.clients; ++i) StartNext();
}

bool ClosedLoop::Wait(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(this, &ClosedLoop::AllGone),
                                 timeout);
}

uint32_t ClosedLoop::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

ClosedLoop::Results ClosedLoop::TakeResults() {
  absl::MutexLock lock(&mutex_);
  return std::move(results_);
}

bool ClosedLoop::AllGone() const { return ended_ == options_.requests; }

void ClosedLoop::StartNext() {
  uint32_t index = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (started_ == options_.requests) return;
    index = started_++;
  }
  (new Call(this, make_request_(index)))->Start();
}

void ClosedLoop::OnEnded(const grpc::Status& status, TokenTiming timing) {
  StartNext();
  // Last: once every call has ended, the loop may be gone.
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    results_.requests.push_back(std::move(timing));
  } else if (results_.failed++ == 0) {
    results_.first_error = status;
  }
  ++ended_;
}

}  // namespace baton
