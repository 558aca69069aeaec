// GroupChannel between processes that share no memory: UCX messages, turned by
// the channel's owner in Receive and Wait.
#ifndef BATON_COMM_UCX_GROUP_CHANNEL_H_
#define BATON_COMM_UCX_GROUP_CHANNEL_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/group_channel.h"
#include "comm/transport.h"
#include "comm/ucx_messenger.h"

namespace baton {

// A peer whose connection ends is lost. An End here closes all connections, in
// its owner's next call, so it reaches the peers that way. What a peer has not
// taken yet, UCX holds.
class UcxGroupChannel final : public GroupChannel {
 public:
  // Of one sender, ahead of one that is missing: more and it is lost.
  static constexpr size_t kMaxEarlyMessages = 1024;

  // `network_devices`: see FindNetworkAddress. `max_processes`: of the group.
  static absl::StatusOr<std::unique_ptr<UcxGroupChannel>> Create(
      const std::string& network_devices, uint32_t max_processes);

  // For the others' Connect().
  const std::string& address() const { return address_; }
  // Once, before the rest: the group has formed, this is its `process`, and
  // these are the addresses of all, its own included.
  absl::Status Connect(uint64_t epoch, uint32_t process,
                       std::span<const std::string> addresses);

  void Send(uint32_t process, std::string_view message) override;
  void Receive(std::vector<ChannelMessage>* received) override;
  void Wait(absl::Duration timeout) override;
  void Wake() override;
  void End() override;
  absl::Status status() const override;

  // Of another epoch, of nobody in this one, or again. The owner's.
  uint64_t num_dropped() const { return num_dropped_; }

 private:
  struct Process {
    PeerId peer;  // Zero: this one.
    uint64_t num_sent = 0;
    uint64_t num_received = 0;
    std::map<uint64_t, std::string> early = {};  // By number.
  };

  explicit UcxGroupChannel(std::unique_ptr<UcxMessenger> messenger);

  bool is_open() const { return !lost_ && !ended_.load(); }
  // What the messenger has, into arrived_.
  void Poll();
  void HandleMessage(std::string_view bytes);
  void Arrive(uint32_t from, std::string_view message);
  void Lose(uint32_t process, std::string_view why);
  void Close();

  const std::string address_;

  std::atomic<bool> ended_{false};

  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  // Null once ended. The owner's, who takes it away under the mutex; others
  // wake it under the mutex.
  std::unique_ptr<UcxMessenger> messenger_;

  // The owner's.
  uint64_t epoch_ = 0;
  uint32_t process_ = 0;
  std::vector<Process> processes_;
  absl::flat_hash_map<PeerId, uint32_t> process_of_peer_;
  std::vector<TransportEvent> events_;
  std::vector<ChannelMessage> arrived_;
  uint64_t num_dropped_ = 0;
  bool lost_ = false;  // failure_ is set.
};

}  // namespace baton

#endif  // BATON_COMM_UCX_GROUP_CHANNEL_H_
