#include "comm/shared_group_channel.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "comm/futex.h"

namespace baton {
namespace {

// A vote takes 62 bytes of it; longer messages go in pieces.
constexpr size_t kRingBytes = 64 << 10;
constexpr size_t kPageBytes = 4096;

}  // namespace

//   memory := ended:u32 doorbell{max} state{max}{max} page? ring{max}{max}
// Of the matrices, a row for each receiver.
struct SharedGroupMemory::Layout {
  explicit Layout(size_t max_processes)
      : num(max_processes),
        doorbells(64),
        states(doorbells + num * sizeof(Doorbell)),
        rings((states + num * num * sizeof(ByteRingState) + kPageBytes - 1) /
              kPageBytes * kPageBytes),
        size(rings + num * num * kRingBytes) {}
  size_t pair(uint32_t from, uint32_t to) const { return to * num + from; }

  const size_t num;
  // Offsets.
  const size_t doorbells;
  const size_t states;
  const size_t rings;
  const size_t size;
};

absl::StatusOr<std::unique_ptr<SharedGroupMemory>> SharedGroupMemory::Create(
    uint32_t max_processes) {
  ASSIGN_OR_RETURN(std::unique_ptr<SharedMemory> memory,
                   SharedMemory::Create(Layout(max_processes).size));
  return std::unique_ptr<SharedGroupMemory>(
      new SharedGroupMemory(max_processes, std::move(memory)));
}

absl::StatusOr<std::unique_ptr<SharedGroupMemory>> SharedGroupMemory::Open(
    uint32_t max_processes, const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<SharedMemory> memory,
                   SharedMemory::Open(path, Layout(max_processes).size));
  return std::unique_ptr<SharedGroupMemory>(
      new SharedGroupMemory(max_processes, std::move(memory)));
}

SharedGroupMemory::SharedGroupMemory(uint32_t max_processes,
                                     std::unique_ptr<SharedMemory> memory)
    : max_processes_(max_processes), memory_(std::move(memory)) {}

SharedGroupMemory::Doorbell* SharedGroupMemory::doorbell(
    uint32_t process) const {
  return reinterpret_cast<Doorbell*>(memory_->data() +
                                     Layout(max_processes_).doorbells) +
         process;
}

ByteRingState* SharedGroupMemory::ring_state(uint32_t from, uint32_t to) const {
  const Layout layout(max_processes_);
  return reinterpret_cast<ByteRingState*>(memory_->data() + layout.states) +
         layout.pair(from, to);
}

std::span<std::byte> SharedGroupMemory::ring_bytes(uint32_t from,
                                                   uint32_t to) const {
  const Layout layout(max_processes_);
  return {memory_->data() + layout.rings + layout.pair(from, to) * kRingBytes,
          kRingBytes};
}

void SharedGroupMemory::End() {
  reinterpret_cast<std::atomic<uint32_t>*>(memory_->data())->store(1);
  for (uint32_t p = 0; p < max_processes_; ++p) Ring(p);
}

bool SharedGroupMemory::ended() const {
  return reinterpret_cast<std::atomic<uint32_t>*>(memory_->data())->load() != 0;
}

void SharedGroupMemory::Ring(uint32_t process) {
  Doorbell* const bell = doorbell(process);
  bell->rings.fetch_add(1);
  if (bell->sleeping.load() != 0) FutexWakeAll(&bell->rings);
}

SharedGroupChannel::SharedGroupChannel(
    // Shared: as the header says.
    std::shared_ptr<SharedGroupMemory> memory, uint32_t process,
    uint32_t num_processes)
    : memory_(std::move(memory)), process_(process) {
  CHECK_LT(process, num_processes);
  CHECK_LE(num_processes, memory_->max_processes_);
  for (uint32_t p = 0; p < num_processes; ++p) {
    peers_.push_back({.writer = {memory_->ring_state(process, p),
                                 memory_->ring_bytes(process, p)},
                      .reader = {memory_->ring_state(p, process),
                                 memory_->ring_bytes(p, process)}});
  }
}

void SharedGroupChannel::Send(uint32_t process, std::string_view message) {
  CHECK(IsPeer(process)) << process;
  CHECK_LE(message.size(), kMaxMessageBytes);
  if (!is_open()) return;
  Peer& peer = peers_[process];
  const auto length = static_cast<uint32_t>(message.size());
  peer.queued.append(reinterpret_cast<const char*>(&length), sizeof length);
  peer.queued.append(message);
  Pump(process);
  if (peer.queued.size() - peer.sent > kMaxQueuedBytes) {
    Lose(process, absl::StatusCode::kResourceExhausted,
         "it takes none of its messages");
  }
}

void SharedGroupChannel::Pump(uint32_t process) {
  Peer& peer = peers_[process];
  if (peer.queued.empty()) return;
  const std::optional<size_t> size =
      peer.writer.Write(std::string_view(peer.queued).substr(peer.sent));
  if (!size.has_value()) {
    Lose(process, absl::StatusCode::kDataLoss, "it damaged what we share");
    return;
  }
  if (*size == 0) return;
  peer.sent += *size;
  // Each byte moves down at most once on average.
  if (peer.sent >= peer.queued.size() - peer.sent) {
    peer.queued.erase(0, std::exchange(peer.sent, 0));
  }
  memory_->Ring(process);
}

void SharedGroupChannel::PumpAll() {
  for (uint32_t p = 0; p < peers_.size(); ++p) Pump(p);
}

void SharedGroupChannel::Receive(std::vector<ChannelMessage>* received) {
  size_t count = 0;
  if (is_open()) {
    PumpAll();
    for (uint32_t p = 0; p < peers_.size(); ++p) {
      if (IsPeer(p)) count = TakeMessages(p, received, count);
    }
  }
  received->resize(count);
}

size_t SharedGroupChannel::TakeMessages(uint32_t process,
                                        std::vector<ChannelMessage>* received,
                                        size_t count) {
  Peer& peer = peers_[process];
  bool good = peer.reader.ReadTo(&peer.received);
  if (peer.reader.TakeWriterWaits()) memory_->Ring(process);
  std::string_view rest = peer.received;
  uint32_t length = 0;
  while (good && rest.size() >= sizeof length) {
    std::memcpy(&length, rest.data(), sizeof length);
    good = length <= kMaxMessageBytes;
    if (!good || rest.size() - sizeof length < length) break;
    if (count == received->size()) received->emplace_back();
    ChannelMessage& message = (*received)[count++];
    message.from = process;
    message.bytes = rest.substr(sizeof length, length);
    rest.remove_prefix(sizeof length + length);
  }
  peer.received.erase(0, peer.received.size() - rest.size());
  if (!good) {
    Lose(process, absl::StatusCode::kDataLoss, "it damaged what we share");
  }
  return count;
}

bool SharedGroupChannel::AnythingHere() const {
  for (uint32_t p = 0; p < peers_.size(); ++p) {
    if (IsPeer(p) && !peers_[p].reader.empty()) return true;
  }
  return false;
}

void SharedGroupChannel::Wait(absl::Duration timeout) {
  SharedGroupMemory::Doorbell* const bell = memory_->doorbell(process_);
  // Whoever rings after this value was read finds us sleeping, or ends
  // FutexWait at once; what came before is seen below.
  bell->sleeping.store(1);
  const uint32_t rings = bell->rings.load();
  PumpAll();
  if (!woken_.load() && is_open() && !AnythingHere()) {
    FutexWait(&bell->rings, rings, MonotonicIn(timeout));
  }
  bell->sleeping.store(0);
  woken_.exchange(false);  // Reads it too: what came before Wake is seen.
}

void SharedGroupChannel::Wake() {
  woken_.store(true);
  memory_->Ring(process_);
}

void SharedGroupChannel::Lose(uint32_t process, absl::StatusCode code,
                              std::string_view why) {
  if (lost_) return;
  lost_ = true;
  const absl::MutexLock lock(&mutex_);
  failure_ = absl::Status(
      code, absl::StrCat("process ", process, " of the group is lost: ",
                         absl::string_view(why.data(), why.size())));
}

absl::Status SharedGroupChannel::status() const {
  {
    const absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
  }
  return memory_->ended()
             ? absl::UnavailableError("the group's channel was ended")
             : absl::OkStatus();
}

}  // namespace baton
