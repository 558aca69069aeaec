// The channel of a group that is one process: there is nobody to talk to.
#ifndef BATON_COMM_LOCAL_GROUP_CHANNEL_H_
#define BATON_COMM_LOCAL_GROUP_CHANNEL_H_

#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"
#include "comm/group_channel.h"

namespace baton {

class LocalGroupChannel final : public GroupChannel {
 public:
  void Send(uint32_t, std::string_view) override {
    LOG(FATAL) << "there is no other process";
  }
  void Receive(std::vector<ChannelMessage>* received) override {
    received->clear();
  }
  void Wait(absl::Duration timeout) override {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &LocalGroupChannel::IsCalled),
                            timeout);
    woken_ = false;
  }
  void Wake() override {
    absl::MutexLock lock(&mutex_);
    woken_ = true;
  }
  void End() override {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  absl::Status status() const override {
    absl::MutexLock lock(&mutex_);
    return ended_ ? absl::UnavailableError("the channel was ended")
                  : absl::OkStatus();
  }

 private:
  bool IsCalled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return woken_ || ended_;
  }

  mutable absl::Mutex mutex_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton

#endif  // BATON_COMM_LOCAL_GROUP_CHANNEL_H_
