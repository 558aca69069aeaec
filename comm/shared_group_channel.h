// GroupChannel between the processes of one host (threads, in tests): a
// ByteRing for each ordered pair, and a futex for each process. A process that
// is stopped or killed holds nobody up.
#ifndef BATON_COMM_SHARED_GROUP_CHANNEL_H_
#define BATON_COMM_SHARED_GROUP_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "comm/byte_ring.h"
#include "comm/group_channel.h"
#include "comm/shared_memory.h"

namespace baton {

// The memory of one epoch, and its end. One process creates it, before the
// group has formed, the others open it. Thread-safe.
class SharedGroupMemory final {
 public:
  // `max_processes`: of the group; its ranks, where nobody knows better. What
  // no process uses takes no memory.
  static absl::StatusOr<std::unique_ptr<SharedGroupMemory>> Create(
      uint32_t max_processes);
  // The path of the one created, in a live process of this host.
  static absl::StatusOr<std::unique_ptr<SharedGroupMemory>> Open(
      uint32_t max_processes, const std::string& path);

  const std::string& path() const { return memory_->path(); }
  // For all of its processes.
  void End();
  bool ended() const;

 private:
  friend class SharedGroupChannel;
  struct Layout;
  // A process's: where it sleeps.
  struct alignas(64) Doorbell {
    std::atomic<uint32_t> rings;  // So far; a futex.
    std::atomic<uint32_t> sleeping;
  };

  SharedGroupMemory(uint32_t max_processes,
                    std::unique_ptr<SharedMemory> memory);
  Doorbell* doorbell(uint32_t process) const;
  void Ring(uint32_t process);
  ByteRingState* ring_state(uint32_t from, uint32_t to) const;
  std::span<std::byte> ring_bytes(uint32_t from, uint32_t to) const;

  const uint32_t max_processes_;
  const std::unique_ptr<SharedMemory> memory_;
};

class SharedGroupChannel final : public GroupChannel {
 public:
  // To each process, waiting here: a peer that takes nothing is lost.
  static constexpr size_t kMaxQueuedBytes = 16 << 20;

  // Shared: by the channels of several processes, if those are threads.
  // REQUIRES: process < num_processes <= max_processes, and the only channel
  // ever of this process in this memory.
  SharedGroupChannel(std::shared_ptr<SharedGroupMemory> memory,
                     uint32_t process, uint32_t num_processes);

  void Send(uint32_t process, std::string_view message) override;
  void Receive(std::vector<ChannelMessage>* received) override;
  void Wait(absl::Duration timeout) override;
  void Wake() override;
  // For all processes.
  void End() override { memory_->End(); }
  absl::Status status() const override;

 private:
  // Of one peer; in both directions a stream of messages:
  //   message := length:u32 octet{length}
  struct Peer {
    ByteRingWriter writer;
    ByteRingReader reader;
    std::string queued = {};  // Before `sent`, the ring has it.
    size_t sent = 0;
    std::string received = {};  // Part of a message.
  };

  bool is_open() const { return !lost_ && !memory_->ended(); }
  bool IsPeer(uint32_t process) const {
    return process != process_ && process < peers_.size();
  }
  void Pump(uint32_t process);
  void PumpAll();
  bool AnythingHere() const;
  // Into `received`, from `count` on; gives the new count.
  size_t TakeMessages(uint32_t process, std::vector<ChannelMessage>* received,
                      size_t count);
  void Lose(uint32_t process, absl::StatusCode code, std::string_view why);

  // Shared: see the constructor.
  const std::shared_ptr<SharedGroupMemory> memory_;
  const uint32_t process_;
  std::vector<Peer> peers_;  // And this process, unused.
  bool lost_ = false;        // The owner's view of failure_.

  std::atomic<bool> woken_{false};

  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton

#endif  // BATON_COMM_SHARED_GROUP_CHANNEL_H_
