// What a process of an expert-parallel group talks over in one epoch: a channel
// for votes and plans, and an exchange for experts' rows.
#ifndef BATON_COMM_GROUP_TRANSPORT_H_
#define BATON_COMM_GROUP_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/expert_boards.h"
#include "comm/expert_dispatch.h"
#include "comm/group_action.h"
#include "comm/group_channel.h"
#include "comm/shared_expert_dispatch.h"
#include "comm/shared_group_channel.h"
#include "comm/ucx_expert_exchange.h"
#include "comm/ucx_group_channel.h"
#include "comm/ucx_transport.h"

namespace baton {

struct GroupTransportOptions {
  ExpertGroupShape shape;
  // The same in each process; process p has [p, p + 1) times as many.
  uint32_t local_ranks = 1;
  uint32_t process = 0;
  // kAuto: shared memory where all processes are on one host, else UCX.
  UcxMode mode = UcxMode::kAuto;
  std::string network_devices = {};  // See FindNetworkAddress.
  // Of one wait for the other ranks.
  absl::Duration deadline = absl::Seconds(5);

  uint32_t num_processes() const {
    return static_cast<uint32_t>(shape.num_ranks) / local_ranks;
  }
};

// Create, then Connect; all else follows that. Thread-safe, but for the
// channel, which has a thread rule of its own, and Connect.
class GroupTransport final {
 public:
  // Takes memory and listens, whichever the group will use.
  static absl::StatusOr<std::unique_ptr<GroupTransport>> Create(
      const GroupTransportOptions& options);

  // For the other processes' Connect.
  const std::string& address() const { return address_; }
  // Once, when the group has formed. An error names the flag or the process.
  absl::Status Connect(const GroupEpoch& group);

  GroupChannel& channel() { return *channel_; }
  // Of a local rank. It borrows this.
  std::unique_ptr<ExpertDispatch> MakeDispatch(uint32_t rank);
  // "local", "shm" or "ucx".
  const char* way() const;

  // Ends every wait, in all processes.
  void End();
  // Not OK: ended, or somebody is lost or kept the others waiting.
  absl::Status status() const;
  // Who that is, as far as it is known here; ascending.
  std::vector<uint32_t> lost_ranks() const;

 private:
  explicit GroupTransport(const GroupTransportOptions& options)
      : options_(options) {}
  absl::Status Prepare();
  absl::Status ConnectShared(const std::string& exchange_path,
                             const std::string& channel_path);
  absl::Status ConnectUcx(const GroupEpoch& group);

  const GroupTransportOptions options_;
  std::string address_;
  // What is not used is null after Connect.
  std::unique_ptr<SharedExpertExchange> shared_exchange_;
  std::unique_ptr<UcxExpertExchange> ucx_exchange_;
  std::shared_ptr<SharedGroupMemory> shared_memory_;  // The channel's.
  std::unique_ptr<UcxGroupChannel> ucx_channel_;
  std::unique_ptr<GroupChannel> channel_;
};

}  // namespace baton

#endif  // BATON_COMM_GROUP_TRANSPORT_H_
