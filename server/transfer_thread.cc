#include "server/transfer_thread.h"

#include "absl/time/time.h"

namespace baton {
namespace {

// Work and the end wake it; this bounds what a lost wake-up costs.
constexpr absl::Duration kIdleWait = absl::Seconds(1);

}  // namespace

TransferThread::TransferThread(KvTransferAgent* agent) : agent_(agent) {
  if (agent_ != nullptr) thread_ = std::thread([this] { Run(); });
}

TransferThread::~TransferThread() {
  if (agent_ == nullptr) return;
  stop_.store(true);
  agent_->Wake();
  thread_.join();
}

void TransferThread::Run() {
  while (!stop_.load()) {
    if (!agent_->Poll()) agent_->Wait(kIdleWait);
  }
}

}  // namespace baton
