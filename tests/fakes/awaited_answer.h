// A request to a running engine, and what comes of it.
#ifndef BATON_TESTS_FAKES_AWAITED_ANSWER_H_
#define BATON_TESTS_FAKES_AWAITED_ANSWER_H_

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/generation_request.h"
#include "engine/token_sink.h"
#include "tests/fakes/recording_token_sink.h"

namespace baton {

// Thread-safe; record() and error() are for behind AwaitEnd.
class AwaitedAnswer final : public TokenSink {
 public:
  explicit AwaitedAnswer(GenerationRequest request)
      : request_(std::move(request)) {}

  const GenerationRequest& request() const { return request_; }
  const RecordingTokenSink& record() const { return record_; }
  std::string error() const {
    return std::string(record_.outcome->status.message());
  }
  absl::StatusCode AwaitEnd() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
    return record_.code();
  }
  // The first; or the end.
  void AwaitToken() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&has_token_));
  }
  KvHandle handle() {
    absl::MutexLock lock(&mutex_);
    return record_.handle.value();
  }

  void OnKvHandle(const KvHandle& handle) override {
    absl::MutexLock lock(&mutex_);
    record_.OnKvHandle(handle);
  }
  void OnProgress(uint32_t computed) override { record_.OnProgress(computed); }
  void OnPromptLogprobs(const ScoredTokens& scored) override {
    record_.OnPromptLogprobs(scored);
  }
  void OnTokens(const ScoredTokens& scored) override {
    absl::MutexLock lock(&mutex_);
    record_.OnTokens(scored);
    has_token_ = true;
  }
  void OnFinished(const GenerationOutcome& outcome) override {
    absl::MutexLock lock(&mutex_);
    record_.OnFinished(outcome);
    ended_ = has_token_ = true;
  }

 private:
  const GenerationRequest request_;
  absl::Mutex mutex_;
  RecordingTokenSink record_;
  bool has_token_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_AWAITED_ANSWER_H_
