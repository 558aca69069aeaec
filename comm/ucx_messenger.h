// Messages and blocks between processes, over UCX's tcp: the part of
// UcxTransport that talks. Its functions are those of Transport, by UCX's own
// addresses.
#ifndef BATON_COMM_UCX_MESSENGER_H_
#define BATON_COMM_UCX_MESSENGER_H_

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport.h"
#include "comm/ucx_context.h"

namespace baton {

// Everything is an active message: a control message comes eagerly, a block by
// rendezvous, so its receiver decides before a byte moves whether it wants it.
// Endpoints have peer error mode: a dead peer is reported, and closing by force
// ends what is outstanding.
//
// Owned by one thread at a time, but for Wake().
class UcxMessenger {
 public:
  // `network_devices`: comma-separated; empty: all.
  static absl::StatusOr<std::unique_ptr<UcxMessenger>> Create(
      const std::string& network_devices, uint32_t max_peers);
  // Whatever is still outstanding ends, untold.
  ~UcxMessenger();
  UcxMessenger(const UcxMessenger&) = delete;
  UcxMessenger& operator=(const UcxMessenger&) = delete;

  const std::string& address() const { return address_; }
  absl::StatusOr<PeerId> Connect(std::string_view address);
  void SendMessage(PeerId peer, std::string message);
  TransferId PostSend(PeerId peer, uint64_t tag,
                      std::span<const std::byte> bytes);
  TransferId PostReceive(uint64_t tag, std::span<std::byte> bytes);
  void Cancel(TransferId receive);
  void ClosePeer(PeerId peer);
  void Poll(std::vector<TransportEvent>* events);
  void Wait(absl::Duration timeout);
  void Wake();

 private:
  struct Peer {
    UcxMessenger* owner;
    PeerId id;
    std::string address;
    ucp_ep_h endpoint = nullptr;
    absl::Status failure;  // Not OK: is in failed_.
  };
  // What UCX works on: a message or block sent, or a matched receive.
  struct Operation {
    UcxMessenger* owner;
    TransferId id;
    bool is_block = false;
    uint64_t tag = 0;  // The header of a block that is sent.
    std::string message;
  };
  struct Receive {
    TransferId id;
    std::span<std::byte> bytes;
  };

  explicit UcxMessenger(uint32_t max_peers) : max_peers_(max_peers) {}
  absl::Status Start(const std::string& network_devices);

  // UCX calls these, inside our calls of it; `arg` is a Peer, a messenger, an
  // Operation.
  static void OnPeerError(void* arg, ucp_ep_h, ucs_status_t status);
  static ucs_status_t OnMessage(void* arg, const void* header,
                                size_t header_bytes, void* data, size_t bytes,
                                const ucp_am_recv_param_t* param);
  static ucs_status_t OnBlock(void* arg, const void* header,
                              size_t header_bytes, void* data, size_t bytes,
                              const ucp_am_recv_param_t* param);
  static void OnSent(void* request, ucs_status_t status, void* arg);
  static void OnReceived(void* request, ucs_status_t status, size_t, void* arg);

  TransferId NextTransfer() { return TransferId(++last_id_); }
  Peer* FindLive(PeerId id);
  void MarkFailed(Peer* peer, absl::Status failure);
  Operation* NewOperation(TransferId id);
  void Send(Peer* peer, Operation* operation, std::span<const std::byte> data);
  ucs_status_t ReceiveBlock(Receive receive, void* data, bool rendezvous);
  void Finish(Operation* operation, ucs_status_t status);
  void CloseFailed();
  void ReapClosed();

  const uint32_t max_peers_;
  std::unique_ptr<UcxContext> context_;
  std::unique_ptr<UcxWorker> worker_;
  std::string address_;
  int worker_fd_ = -1;  // The worker's.
  int wake_fd_ = -1;    // Ours; thread-safe.

  uint64_t last_id_ = 0;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<std::string, PeerId> peer_of_address_;
  std::vector<PeerId> failed_;  // To be closed by the next Poll().
  // Being closed: UCX may refer to them until the request is done.
  std::vector<std::pair<ucs_status_ptr_t, std::unique_ptr<Peer>>> closing_;
  absl::flat_hash_map<TransferId, std::unique_ptr<Operation>> operations_;
  absl::flat_hash_map<uint64_t, Receive> receives_;  // Unmatched, by tag.
  absl::flat_hash_map<TransferId, uint64_t> receive_tags_;
  std::vector<TransportEvent> events_;
};

}  // namespace baton

#endif  // BATON_COMM_UCX_MESSENGER_H_
