// What the KV transfer agent needs of a network: one shared region, small
// messages, block-sized transfers, and to be told when a peer dies.
#ifndef BATON_COMM_TRANSPORT_H_
#define BATON_COMM_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/strong_int.h"

namespace baton {

// A connection to one peer. Ids of both kinds are never reused.
BATON_DEFINE_STRONG_INT(PeerId, uint64_t);
// A posted send or receive of a block.
BATON_DEFINE_STRONG_INT(TransferId, uint64_t);

struct MessageReceived {
  std::string message;  // From anybody: judge it by its content alone.
};
// The peer is dead, unreachable or was closed. Its id and its mapping are gone;
// Connect() to the same address makes a new peer.
struct PeerFailed {
  PeerId peer;
  absl::Status status;
};
// The transport touches the memory of this transfer no more. Of a send: OK does
// not mean that the peer accepted it.
struct TransferDone {
  TransferId id;
  absl::Status status;
};
using TransportEvent = std::variant<MessageReceived, PeerFailed, TransferDone>;

// A peer's region, as its owner described it.
struct RemoteRegion {
  std::string_view host_id;
  std::string_view remote_key;
  uint64_t base_address = 0;
  size_t bytes = 0;
};

inline constexpr size_t kMaxMessageBytes = 4 << 20;

// Owned by one thread at a time, but for what is marked thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;

  // Memory that peers of this host can map, zeroed and backed by real pages.
  // It lives as long as the transport. REQUIRES: called once, before the rest.
  // RESOURCE_EXHAUSTED: the size does not fit, with what would.
  virtual absl::StatusOr<std::byte*> AllocateRegion(size_t bytes) = 0;

  // Constant once the region is allocated; thread-safe.
  virtual const std::string& address() const = 0;
  virtual const std::string& host_id() const = 0;
  virtual const std::string& remote_key() const = 0;  // Empty: not mappable.
  // False: blocks only move by mapping (PostSend and PostReceive do not exist).
  virtual bool sends_blocks() const = 0;

  // Starts to connect; the same address gives the same peer until it fails.
  // INVALID_ARGUMENT: not an address. RESOURCE_EXHAUSTED: too many peers.
  virtual absl::StatusOr<PeerId> Connect(std::string_view address) = 0;
  // The peer's region in this process's address space, to read only; null where
  // that is not possible, or the peer's is not of these bytes. Valid until
  // Poll() reports the peer as failed.
  virtual const std::byte* MapRemote(PeerId peer,
                                     const RemoteRegion& region) = 0;

  // Reliable unless the peer fails, which PeerFailed tells. Usually in order,
  // but nothing may depend on it. REQUIRES: size <= kMaxMessageBytes.
  virtual void SendMessage(PeerId peer, std::string message) = 0;

  // Moves `bytes` into the receive that the peer posted under `tag`; without
  // such a receive it is dropped. One TransferDone follows.
  virtual TransferId PostSend(PeerId peer, uint64_t tag,
                              std::span<const std::byte> bytes) = 0;
  // Accepts one send of exactly this size. One TransferDone follows.
  // REQUIRES: no other live receive has this tag.
  virtual TransferId PostReceive(uint64_t tag, std::span<std::byte> bytes) = 0;
  // Ends a receive that nothing has matched yet: TransferDone(CANCELLED)
  // follows. A matched one ends by itself, or with its peer. Any id may be
  // given.
  virtual void Cancel(TransferId receive) = 0;

  // By force, without the peer's help: what is outstanding towards it ends, and
  // PeerFailed(CANCELLED) follows. Any id may be given.
  virtual void ClosePeer(PeerId peer) = 0;

  // Makes progress without blocking and appends what happened.
  virtual void Poll(std::vector<TransportEvent>* events) = 0;
  // Blocks until Poll() may have something, Wake(), or `timeout`.
  virtual void Wait(absl::Duration timeout) = 0;
  // Ends the present or the next Wait(). Thread-safe.
  virtual void Wake() = 0;
};

}  // namespace baton

#endif  // BATON_COMM_TRANSPORT_H_
