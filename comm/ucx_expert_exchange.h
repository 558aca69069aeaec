// The exchange of a group spread over processes that share no memory: boards
// within each process, UCX messages between each two.
#ifndef BATON_COMM_UCX_EXPERT_EXCHANGE_H_
#define BATON_COMM_UCX_EXPERT_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "comm/expert_dispatch.h"
#include "comm/expert_message.h"
#include "comm/shared_expert_dispatch.h"
#include "comm/transport.h"
#include "comm/ucx_messenger.h"

namespace baton {

struct UcxExpertExchangeOptions {
  ExpertGroupShape shape;
  absl::Duration deadline = absl::Seconds(5);
  bool spins = false;
  // The ranks of each process: in order, and all of the group's.
  std::vector<RankRange> processes;
  int process = 0;                     // This one.
  std::string network_devices = "lo";  // See FindNetworkAddress.
};

// One process's part, for one epoch. One UCX worker, on one thread of its own:
// the last local rank to arrive asks it to exchange, and it lets all go on when
// every process's message is here. One message to each process, layer and
// direction (in parts where it is long), empty or not, each token row once.
// Thread-safe, but for Connect().
class UcxExpertExchange final {
 public:
  static absl::StatusOr<std::unique_ptr<UcxExpertExchange>> Create(
      const UcxExpertExchangeOptions& options);
  // By force: what others have not received yet is lost.
  ~UcxExpertExchange();
  UcxExpertExchange(const UcxExpertExchange&) = delete;
  UcxExpertExchange& operator=(const UcxExpertExchange&) = delete;

  // For the others' Connect().
  const std::string& address() const { return messenger_->address(); }
  // Once, before any dispatch: the group has formed. The addresses are those of
  // each process, its own included; messages of another epoch are dropped.
  absl::Status Connect(uint64_t epoch, std::span<const std::string> addresses);
  // For each local rank. It borrows this.
  std::unique_ptr<ExpertDispatch> MakeDispatch(int rank) {
    return local_->MakeDispatch(rank);
  }

  // Ends it for all: the other processes see the connection close.
  void End();
  absl::Status status() const;
  // Whom that is about, as far as it is known; ascending. Once ended, it waits
  // for the bridge thread to see that.
  std::vector<uint32_t> lost_ranks() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Exchanges are numbered from 1: odd ones carry tokens, even ones outputs.
  // Of one of them, what one process has sent so far.
  struct Inbound {
    uint32_t exchange = 0;
    std::vector<std::string> parts;
    uint32_t num_missing = 0;
  };
  struct Process {
    RankRange ranks;
    PeerId peer;
    // It may be one exchange ahead of us.
    Inbound inbound[2];
  };

  UcxExpertExchange(const UcxExpertExchangeOptions& options,
                    std::unique_ptr<SharedExpertExchange> local,
                    std::unique_ptr<UcxMessenger> messenger);

  // All below: the bridge thread.
  void Run();
  bool HandleEvents();
  absl::Status HandleMessage(std::string_view message);
  bool Advance();
  void SendTo(Process* process, uint32_t exchange);
  static bool IsHere(const Process& process, uint32_t exchange);
  bool AllAreHere(uint32_t exchange) const;
  absl::Status TakeMessages(uint32_t exchange);
  void Fail(absl::Status status, std::vector<uint32_t> lost_ranks);
  void NoteMissing();
  std::vector<uint32_t> MissingRanks() const;
  void CloseAll();

  const UcxExpertExchangeOptions options_;
  const std::unique_ptr<SharedExpertExchange> local_;
  const std::unique_ptr<UcxMessenger> messenger_;
  const ExpertMessenger messages_;

  std::atomic<uint32_t> requested_{
      0};  // The newest exchange that ranks are in.
  std::atomic<bool> stopping_{false};

  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> lost_ranks_ ABSL_GUARDED_BY(mutex_);
  bool has_noted_ ABSL_GUARDED_BY(mutex_) = false;  // lost_ranks_ is final.

  // The bridge thread's, from Connect() on.
  uint64_t epoch_ = 0;
  std::vector<Process> processes_;  // Not this one's.
  absl::flat_hash_map<PeerId, int> process_of_peer_;
  std::vector<TransportEvent> events_;
  uint32_t sent_ = 0;
  uint32_t done_ = 0;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace baton

#endif  // BATON_COMM_UCX_EXPERT_EXCHANGE_H_
