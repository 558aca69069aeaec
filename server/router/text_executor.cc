#include "server/router/text_executor.h"

#include <utility>

#include "absl/time/time.h"
#include "server/edge/grpc_status.h"

namespace baton {

TextExecutor::TextExecutor() : thread_([this] { Loop(); }) {}

TextExecutor::~TextExecutor() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Status TextExecutor::Run(size_t text_bytes, Job job) {
  if (text_bytes <= kMaxInlineBytes) {
    job();
    return absl::OkStatus();
  }
  absl::MutexLock lock(&mutex_);
  if (jobs_.size() >= kMaxQueuedJobs) {
    return WithReason(
        WithRetryDelay(absl::ResourceExhaustedError("too many long texts wait"),
                       absl::Seconds(1)),
        "QUEUE_FULL");
  }
  jobs_.push_back(std::move(job));
  return absl::OkStatus();
}

void TextExecutor::Loop() {
  while (true) {
    Job job;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &TextExecutor::HasWorkOrStops));
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace baton
