#include "server/cli/load_loop.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/logging.h"

namespace baton {

// One request's stream. Deletes itself in OnDone.
class LoadLoop::Call final
    : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Call(LoadLoop* loop, v1::GenerateRequest request, absl::Time sent)
      : loop_(loop), request_(std::move(request)), sent_(sent) {}

  void Start() {
    context_.set_deadline(std::chrono::system_clock::now() +
                          absl::ToChronoNanoseconds(loop_->options_.timeout));
    arrivals_.reserve(size_t{request_.stopping().max_tokens()} *
                      std::max(request_.sampling().n(), 1u));
    loop_->stub_->async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_chunk()) {
      const int num_tokens = response_.chunk().token_ids_size();
      arrivals_.push_back({loop_->clock_.Now(), static_cast<size_t>(num_tokens),
                           response_.chunk().sample_index()});
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    const absl::Time ended =
        arrivals_.empty() ? loop_->clock_.Now() : arrivals_.back().time;
    TokenTiming timing = MeasureTokens(sent_, ended, arrivals_);
    timing.prompt_tokens =
        static_cast<size_t>(request_.prompt().token_ids().ids_size());
    LoadLoop* const loop = loop_;
    const grpc::Status ended_with = status;
    // Before it tells: the process may end then, and our context needs gRPC.
    delete this;
    loop->OnEnded(ended_with, std::move(timing));
  }

  LoadLoop* const loop_;
  const v1::GenerateRequest request_;
  const absl::Time sent_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  std::vector<TokenArrival> arrivals_;
};

LoadLoop::LoadLoop(LoadLoopOptions options, v1::InferenceService::Stub* stub,
                   MakeRequest make_request)
    : options_(std::move(options)),
      stub_(stub),
      make_request_(std::move(make_request)) {
  CHECK(!open() || options_.send_times.size() == options_.requests);
}

LoadLoop::~LoadLoop() {
  absl::MutexLock lock(&mutex_);
  CHECK(started_ == ended_) << "a call of the loop is still running";
}

void LoadLoop::Start() {
  start_ = clock_.Now();
  if (open()) return;
  for (uint32_t i = 0; i < options_.clients; ++i) StartNext(clock_.Now());
}

bool LoadLoop::Wait(absl::Duration timeout) {
  const absl::Time deadline = clock_.Now() + timeout;
  while (true) {
    const absl::Time next = SendDue();
    const absl::Time now = clock_.Now();
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(this, &LoadLoop::AllGone),
                                std::min(deadline, next) - now)) {
      return true;
    }
    if (deadline <= next) return false;
  }
}

absl::Time LoadLoop::SendDue() {
  while (num_sent_ < options_.send_times.size()) {
    const absl::Time due = start_ + options_.send_times[num_sent_];
    if (due > clock_.Now()) return due;
    ++num_sent_;
    StartNext(due);
  }
  return absl::InfiniteFuture();
}

uint32_t LoadLoop::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}

LoadLoop::Results LoadLoop::TakeResults() {
  absl::MutexLock lock(&mutex_);
  return std::move(results_);
}

bool LoadLoop::AllGone() const { return ended_ == options_.requests; }

void LoadLoop::StartNext(absl::Time sent) {
  uint32_t index = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (started_ == options_.requests) return;
    index = started_++;
  }
  (new Call(this, make_request_(index), sent))->Start();
}

void LoadLoop::OnEnded(const grpc::Status& status, TokenTiming timing) {
  if (!open()) StartNext(clock_.Now());
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
