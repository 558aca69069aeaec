// The thread of a process's transfer agent.
#ifndef BATON_SERVER_TRANSFER_THREAD_H_
#define BATON_SERVER_TRANSFER_THREAD_H_

#include <atomic>
#include <thread>

#include "comm/kv_transfer_agent.h"

namespace baton {

// Turns the agent; blocks when there is nothing to do.
class TransferThread {
 public:
  // Borrows the agent, which must outlive it. Null: there is no thread.
  explicit TransferThread(KvTransferAgent* agent);
  ~TransferThread();
  TransferThread(const TransferThread&) = delete;
  TransferThread& operator=(const TransferThread&) = delete;

 private:
  void Run();

  KvTransferAgent* const agent_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace baton

#endif  // BATON_SERVER_TRANSFER_THREAD_H_
