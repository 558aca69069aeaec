#include "server/router/retry_budget.h"

#include <algorithm>

#include "base/logging.h"

namespace baton {
namespace {

// One more of the window's.
bool Take(WindowedCount* taken, double share, int64_t of, uint32_t at_least,
          absl::Time now) {
  const double allowed =
      std::max<double>(at_least, share * static_cast<double>(of));
  if (static_cast<double>(taken->Sum(now) + 1) > allowed) return false;
  taken->Add(now, 1);
  return true;
}

}  // namespace

RetryBudget::RetryBudget(const Options& options)
    : options_(options),
      requests_(options.window),
      retries_(options.window),
      resumes_(options.window) {}

void RetryBudget::OnBegan(uint32_t num_streams, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  num_streams_ += num_streams;
  requests_.Add(now, 1);
}

void RetryBudget::OnEnded(uint32_t num_streams) {
  absl::MutexLock lock(&mutex_);
  num_streams_ -= num_streams;
  CHECK_GE(num_streams_, 0);
}

bool RetryBudget::TakeRetry(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  return Take(&retries_, options_.retry_share, requests_.Sum(now),
              options_.min_retries, now);
}

bool RetryBudget::TakeResume(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  return Take(&resumes_, options_.resumes_per_stream, num_streams_,
              options_.min_resumes, now);
}

}  // namespace baton
