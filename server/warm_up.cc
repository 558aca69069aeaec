#include "server/warm_up.h"

#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/token_sink.h"

namespace baton {
namespace {

class WarmUpSink final : public TokenSink {
 public:
  void OnKvHandle(const KvHandle&) override {}
  void OnProgress(uint32_t) override {}
  void OnPromptLogprobs(const ScoredTokens&) override {}
  void OnTokens(const ScoredTokens&) override {}
  void OnFinished(const GenerationOutcome& outcome) override {
    status_ = outcome.status;
    finished_.Notify();
  }

  absl::Status Await() {
    finished_.WaitForNotification();
    return status_;
  }

 private:
  absl::Status status_;
  absl::Notification finished_;
};

}  // namespace

absl::Status WarmUp(LLMEngine* engine, const Clock& clock,
                    absl::Duration timeout) {
  GenerationRequest request;
  request.token_ids = {0};
  request.original_prompt_tokens = 1;
  request.max_tokens = 2;
  request.sampling.temperature = 0;
  request.deadline = clock.Now() + timeout;
  WarmUpSink sink;
  if (absl::Status status = engine->Submit(std::move(request), &sink);
      !status.ok()) {
    return status;
  }
  return sink.Await();
}

}  // namespace baton
