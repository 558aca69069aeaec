#include "comm/loopback_transport.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"

namespace baton {
namespace {

constexpr size_t kPageBytes = 4096;

struct FreeDeleter {
  void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte, FreeDeleter>;

// What is on its way to an endpoint.
struct Parcel {
  uint64_t due_poll = 0;  // Of the receiver.
  std::string message;
  // A block, if `send` is not zero.
  TransferId send;
  std::string from;
  uint64_t tag = 0;
  std::span<const std::byte> block;
};

struct Receive {
  TransferId id;
  std::span<std::byte> bytes;
};

struct Endpoint {
  LoopbackEndpointOptions options;
  bool alive = true;
  uint64_t polls = 0;
  bool woken = false;
  std::span<std::byte> region;
  std::vector<Parcel> inbox;                // In order of sending.
  std::map<PeerId, std::string> peers;      // Address of each.
  std::map<uint64_t, Receive> receives;     // By tag.
  std::map<TransferId, std::string> sends;  // Unfinished; receiver's address.
  std::vector<TransportEvent> events;       // Ready for the next Poll.
};

}  // namespace

struct LoopbackNetwork::State {
  absl::Mutex mutex;
  Hook hook ABSL_GUARDED_BY(mutex);
  uint64_t last_id ABSL_GUARDED_BY(mutex) = 0;
  // Endpoints stay, dead or alive, so that their addresses are never reused.
  std::map<std::string, Endpoint, std::less<>> endpoints ABSL_GUARDED_BY(mutex);
  std::vector<Memory> regions ABSL_GUARDED_BY(mutex);

  LoopbackFate Fate(std::string_view from, std::string_view to,
                    std::string_view message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return hook ? hook(from, to, message) : LoopbackFate{};
  }

  void FinishSend(std::string_view sender, TransferId id, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Disconnect(Endpoint* endpoint, PeerId peer, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Deliver(Endpoint* to, Parcel parcel)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Kill(std::string_view address, bool told)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

void LoopbackNetwork::State::FinishSend(std::string_view sender, TransferId id,
                                        absl::Status status) {
  const auto it = endpoints.find(sender);
  if (it == endpoints.end() || it->second.sends.erase(id) == 0) return;
  it->second.events.push_back(TransferDone{id, std::move(status)});
}

// Ends what `endpoint` has outstanding towards one of its peers.
void LoopbackNetwork::State::Disconnect(Endpoint* endpoint, PeerId peer,
                                        absl::Status status) {
  const auto it = endpoint->peers.find(peer);
  if (it == endpoint->peers.end()) return;
  const std::string address = it->second;
  endpoint->peers.erase(it);
  std::vector<Parcel>& inbox = endpoints.find(address)->second.inbox;
  for (auto send = endpoint->sends.begin(); send != endpoint->sends.end();) {
    if (send->second != address) {
      ++send;
      continue;
    }
    std::erase_if(inbox,
                  [&](const Parcel& p) { return p.send == send->first; });
    endpoint->events.push_back(TransferDone{send->first, status});
    send = endpoint->sends.erase(send);
  }
  endpoint->events.push_back(PeerFailed{peer, std::move(status)});
}

void LoopbackNetwork::State::Deliver(Endpoint* to, Parcel parcel) {
  if (parcel.send == TransferId()) {
    to->events.push_back(MessageReceived{std::move(parcel.message)});
    return;
  }
  const auto receive = to->receives.find(parcel.tag);
  if (receive != to->receives.end() &&
      receive->second.bytes.size() == parcel.block.size()) {
    std::copy(parcel.block.begin(), parcel.block.end(),
              receive->second.bytes.begin());
    to->events.push_back(TransferDone{receive->second.id, absl::OkStatus()});
    to->receives.erase(receive);
  }
  FinishSend(parcel.from, parcel.send, absl::OkStatus());
}

void LoopbackNetwork::State::Kill(std::string_view address, bool told) {
  const auto dead = endpoints.find(address);
  if (dead == endpoints.end() || !dead->second.alive) return;
  dead->second.alive = false;
  dead->second.sends.clear();
  for (auto& [name, endpoint] : endpoints) {
    // What it was sending is not there any more.
    std::erase_if(endpoint.inbox, [&](const Parcel& p) {
      return p.send != TransferId() && p.from == address;
    });
    if (!told) continue;
    std::vector<PeerId> ids;
    for (const auto& [id, peer] : endpoint.peers) {
      if (peer == address) ids.push_back(id);
    }
    for (PeerId id : ids) {
      Disconnect(&endpoint, id, absl::UnavailableError("peer died"));
    }
  }
}

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(LoopbackNetwork::State* state, std::string address,
                    bool sends_blocks)
      : state_(state),
        address_(std::move(address)),
        sends_blocks_(sends_blocks) {}
  ~LoopbackTransport() override {
    absl::MutexLock lock(&state_->mutex);
    state_->Kill(address_, true);
  }

  absl::StatusOr<std::byte*> AllocateRegion(size_t bytes) override {
    const size_t size = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    Memory memory(
        static_cast<std::byte*>(std::aligned_alloc(kPageBytes, size)));
    if (memory == nullptr) return absl::ResourceExhaustedError("no memory");
    std::memset(memory.get(), 0, size);
    absl::MutexLock lock(&state_->mutex);
    Endpoint& self = Self();
    CHECK(self.region.empty());
    self.region = {memory.get(), bytes};
    state_->regions.push_back(std::move(memory));
    if (self.options.maps_regions) remote_key_ = address_;
    return self.region.data();
  }

  const std::string& address() const override { return address_; }
  const std::string& host_id() const override { return host_id_; }
  const std::string& remote_key() const override { return remote_key_; }
  bool sends_blocks() const override { return sends_blocks_; }

  absl::StatusOr<PeerId> Connect(std::string_view address) override {
    absl::MutexLock lock(&state_->mutex);
    const auto peer = state_->endpoints.find(address);
    if (peer == state_->endpoints.end()) {
      return absl::InvalidArgumentError("no such loopback endpoint");
    }
    Endpoint& self = Self();
    for (const auto& [id, connected] : self.peers) {
      if (connected == address) return id;
    }
    const PeerId id(++state_->last_id);
    self.peers.emplace(id, address);
    if (!peer->second.alive) {
      state_->Disconnect(&self, id, absl::UnavailableError("peer is dead"));
    }
    return id;
  }

  const std::byte* MapRemote(PeerId peer, const RemoteRegion& region) override {
    absl::MutexLock lock(&state_->mutex);
    const Endpoint& self = Self();
    const auto it = self.peers.find(peer);
    if (!self.options.maps_regions || it == self.peers.end()) return nullptr;
    const Endpoint& owner = state_->endpoints.find(it->second)->second;
    const auto base = reinterpret_cast<uint64_t>(owner.region.data());
    if (!owner.options.maps_regions || region.host_id != host_id_ ||
        region.remote_key != it->second || region.base_address != base ||
        region.bytes != owner.region.size()) {
      return nullptr;
    }
    return owner.region.data();
  }

  void SendMessage(PeerId peer, std::string message) override {
    CHECK_LE(message.size(), kMaxMessageBytes);
    absl::MutexLock lock(&state_->mutex);
    Endpoint* to = LivePeer(peer);
    if (to == nullptr) return;
    const LoopbackFate fate =
        state_->Fate(address_, Self().peers.at(peer), message);
    for (uint32_t i = 0; i < fate.copies; ++i) {
      Parcel parcel;
      parcel.due_poll = to->polls + fate.delay_polls + 1;
      parcel.message = message;
      to->inbox.push_back(std::move(parcel));
    }
  }

  TransferId PostSend(PeerId peer, uint64_t tag,
                      std::span<const std::byte> bytes) override {
    absl::MutexLock lock(&state_->mutex);
    const TransferId id(++state_->last_id);
    Endpoint& self = Self();
    const auto it = self.peers.find(peer);
    if (it == self.peers.end()) {
      self.events.push_back(
          TransferDone{id, absl::UnavailableError("no such peer")});
      return id;
    }
    self.sends.emplace(id, it->second);
    Endpoint* to = LivePeer(peer);
    if (to == nullptr) return id;  // Silent: it ends when the peer is closed.
    const LoopbackFate fate = state_->Fate(address_, it->second, {});
    if (fate.copies == 0) return id;
    to->inbox.push_back({.due_poll = to->polls + fate.delay_polls + 1,
                         .message = {},
                         .send = id,
                         .from = address_,
                         .tag = tag,
                         .block = bytes});
    return id;
  }

  TransferId PostReceive(uint64_t tag, std::span<std::byte> bytes) override {
    absl::MutexLock lock(&state_->mutex);
    const TransferId id(++state_->last_id);
    CHECK(Self().receives.emplace(tag, Receive{id, bytes}).second);
    return id;
  }

  void Cancel(TransferId receive) override {
    absl::MutexLock lock(&state_->mutex);
    Endpoint& self = Self();
    const auto it =
        std::find_if(self.receives.begin(), self.receives.end(),
                     [&](const auto& r) { return r.second.id == receive; });
    if (it == self.receives.end()) return;
    self.receives.erase(it);
    self.events.push_back(
        TransferDone{receive, absl::CancelledError("cancelled")});
  }

  void ClosePeer(PeerId peer) override {
    absl::MutexLock lock(&state_->mutex);
    state_->Disconnect(&Self(), peer, absl::CancelledError("closed"));
  }

  void Poll(std::vector<TransportEvent>* events) override {
    absl::MutexLock lock(&state_->mutex);
    Endpoint& self = Self();
    ++self.polls;
    if (self.alive) DeliverDue(&self);
    for (TransportEvent& event : self.events) {
      events->push_back(std::move(event));
    }
    self.events.clear();
  }

  void Wait(absl::Duration timeout) override {
    absl::MutexLock lock(&state_->mutex);
    Endpoint& self = Self();
    state_->mutex.AwaitWithTimeout(absl::Condition(&HasWork, &self), timeout);
    self.woken = false;
  }

  void Wake() override {
    absl::MutexLock lock(&state_->mutex);
    Self().woken = true;
  }

 private:
  static bool HasWork(Endpoint* endpoint) {
    return endpoint->woken || !endpoint->inbox.empty() ||
           !endpoint->events.empty();
  }

  Endpoint& Self() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    return state_->endpoints.find(address_)->second;
  }

  // Null if either end is dead or the peer is not connected.
  Endpoint* LivePeer(PeerId peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    Endpoint& self = Self();
    const auto it = self.peers.find(peer);
    if (!self.alive || it == self.peers.end()) return nullptr;
    Endpoint& endpoint = state_->endpoints.find(it->second)->second;
    return endpoint.alive ? &endpoint : nullptr;
  }

  void DeliverDue(Endpoint* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
    const auto late = std::stable_partition(
        self->inbox.begin(), self->inbox.end(),
        [&](const Parcel& p) { return p.due_poll > self->polls; });
    std::vector<Parcel> due(std::make_move_iterator(late),
                            std::make_move_iterator(self->inbox.end()));
    self->inbox.erase(late, self->inbox.end());
    for (Parcel& parcel : due) state_->Deliver(self, std::move(parcel));
  }

  LoopbackNetwork::State* const state_;
  const std::string address_;
  const std::string host_id_ = "loopback";
  const bool sends_blocks_;
  std::string remote_key_;
};

LoopbackNetwork::LoopbackNetwork() : state_(std::make_unique<State>()) {}
LoopbackNetwork::~LoopbackNetwork() = default;

std::unique_ptr<Transport> LoopbackNetwork::CreateEndpoint(
    std::string address, LoopbackEndpointOptions options) {
  {
    absl::MutexLock lock(&state_->mutex);
    const auto [it, fresh] = state_->endpoints.try_emplace(address);
    CHECK(fresh) << "loopback address " << address << " is taken";
    it->second.options = options;
  }
  return std::make_unique<LoopbackTransport>(state_.get(), std::move(address),
                                             options.sends_blocks);
}

void LoopbackNetwork::set_hook(Hook hook) {
  absl::MutexLock lock(&state_->mutex);
  state_->hook = std::move(hook);
}

void LoopbackNetwork::Kill(std::string_view address, bool told) {
  absl::MutexLock lock(&state_->mutex);
  state_->Kill(address, told);
}

}  // namespace baton
