#include "server/router/admission.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "server/edge/grpc_status.h"

namespace baton {

absl::Status Admission::Enter(AdmissionTicket ticket,
                              const std::string& client_request_id,
                              StartFunction start, ShedFunction shed) {
  {
    absl::MutexLock lock(&mutex_);
    if (live_client_ids_.contains(client_request_id)) {
      return absl::AlreadyExistsError(
          "client_request_id is in use by a live request");
    }
    const bool has_turn = num_running_ < options_.max_concurrent_requests;
    if (!has_turn && waiting_.size() >= options_.max_queued_requests) {
      return WithReason(
          WithRetryDelay(absl::ResourceExhaustedError(absl::StrCat(
                             "the queue of ", options_.max_queued_requests,
                             " requests is full")),
                         absl::Seconds(1)),
          "QUEUE_FULL");
    }
    if (!client_request_id.empty()) {
      live_client_ids_.insert(client_request_id);
      client_ids_.emplace(ticket, client_request_id);
    }
    if (!has_turn) {
      Waiting waiting = {.start = std::move(start), .shed = std::move(shed)};
      CHECK(waiting_.emplace(ticket, std::move(waiting)).second);
      return absl::OkStatus();
    }
    ++num_running_;
    to_start_.push_back(std::move(start));
  }
  StartNext();
  return absl::OkStatus();
}

void Admission::Leave(AdmissionTicket ticket) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto id = client_ids_.find(ticket); id != client_ids_.end()) {
      live_client_ids_.erase(id->second);
      client_ids_.erase(id);
    }
    if (waiting_.erase(ticket) > 0 || paused_.erase(ticket) > 0) return;
    FreePlace();
  }
  StartNext();
}

uint64_t Admission::ShedWaiting(const absl::Status& status) {
  std::vector<ShedFunction> sheds;
  {
    absl::MutexLock lock(&mutex_);
    const size_t half = (waiting_.size() + 1) / 2;
    for (auto it = waiting_.rbegin();
         it != waiting_.rend() && sheds.size() < half; ++it) {
      if (it->second.shed == nullptr) continue;  // Told before.
      sheds.push_back(std::exchange(it->second.shed, nullptr));
    }
  }
  for (ShedFunction& shed : sheds) shed(status);
  return sheds.size();
}

void Admission::SetPaused(AdmissionTicket ticket, bool paused) {
  {
    absl::MutexLock lock(&mutex_);
    if (!paused) {
      num_running_ += static_cast<uint32_t>(paused_.erase(ticket));
      return;
    }
    CHECK(!waiting_.contains(ticket));
    if (!paused_.insert(ticket).second) return;
    FreePlace();
  }
  StartNext();
}

void Admission::FreePlace() {
  CHECK_GT(num_running_, 0u);
  --num_running_;
  if (waiting_.empty() || num_running_ >= options_.max_concurrent_requests) {
    return;
  }
  ++num_running_;
  to_start_.push_back(std::move(waiting_.begin()->second.start));
  waiting_.erase(waiting_.begin());
}

void Admission::StartNext() {
  absl::MutexLock lock(&mutex_);
  if (starting_) return;
  starting_ = true;
  while (!to_start_.empty()) {
    StartFunction start = std::move(to_start_.front());
    to_start_.pop_front();
    mutex_.Unlock();
    start();
    start = nullptr;
    mutex_.Lock();
  }
  starting_ = false;
}

uint32_t Admission::num_running() const {
  absl::MutexLock lock(&mutex_);
  return num_running_;
}

uint32_t Admission::num_waiting() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<uint32_t>(waiting_.size());
}

}  // namespace baton
