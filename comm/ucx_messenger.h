// Messages and blocks between processes, over UCX's tcp: the part of
// UcxTransport that talks. Its functions are those of Transport.
//
// Everything is an active message: a control message comes eagerly, a block by
// rendezvous, so its receiver decides before a byte moves whether it wants it.
// Endpoints have peer error mode: a dead peer is reported, and closing by force
// ends what is outstanding.
//
// They are connected by sockets (client and listener), because by worker
// addresses UCX 1.13 aborts the process when a peer dies while connecting. A
// client says hello with the address at which it listens itself, so that both
// sides use one connection; where both connect at once there are two, which
// live and die together.
#ifndef BATON_COMM_UCX_MESSENGER_H_
#define BATON_COMM_UCX_MESSENGER_H_

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/network_address.h"
#include "comm/transport.h"
#include "comm/ucx_context.h"

namespace baton {

// Owned by one thread at a time, but for Wake().
class UcxMessenger {
 public:
  // Listens on the first of `network_devices` (see FindNetworkAddress).
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
  struct Connection {
    UcxMessenger* owner = nullptr;
    ucp_ep_h endpoint = nullptr;
    PeerId peer;  // Zero: accepted, and has not said hello.
    bool failed = false;
  };
  struct Peer {
    PeerId id;
    std::string address;
    uint64_t nonce = 0;
    std::vector<Connection*> connections;  // The first is sent on.
    absl::Status failure;                  // Not OK: they are in failed_.
  };
  // Precedes every active message.
  struct Header {
    uint64_t nonce;  // Of the receiver, or it is meant for another.
    uint64_t tag;    // Of a block.
  };
  // What UCX works on: a message or block sent, or a matched receive.
  struct Operation {
    UcxMessenger* owner;
    TransferId id;
    bool is_block = false;
    Header header = {};
    std::string message;
  };
  struct Receive {
    TransferId id;
    std::span<std::byte> bytes;
  };

  explicit UcxMessenger(uint32_t max_peers);
  absl::Status Start(const std::string& network_devices);
  absl::Status Listen(NetworkAddress address);

  // UCX calls these inside our calls of it. `arg` is the messenger, but a
  // Connection for OnError and an Operation for OnSent and OnReceived.
  static void OnConnectionRequest(ucp_conn_request_h request, void* arg);
  static void OnError(void* arg, ucp_ep_h, ucs_status_t status);
  static ucs_status_t OnHello(void* arg, const void* header, size_t header_size,
                              void* data, size_t size,
                              const ucp_am_recv_param_t* param);
  static ucs_status_t OnMessage(void* arg, const void* header,
                                size_t header_size, void* data, size_t size,
                                const ucp_am_recv_param_t* param);
  static ucs_status_t OnBlock(void* arg, const void* header, size_t header_size,
                              void* data, size_t size,
                              const ucp_am_recv_param_t* param);
  static void OnSent(void* request, ucs_status_t status, void* arg);
  static void OnReceived(void* request, ucs_status_t status, size_t, void* arg);

  // Nothing for a header that is not for us.
  std::optional<Header> OwnHeader(const void* header, size_t size) const;
  TransferId NextTransfer() { return TransferId(++last_id_); }
  Peer* FindPeer(PeerId id);  // If it is live.
  absl::StatusOr<Connection*> OpenConnection(ucp_ep_params_t params);
  void AcceptConnections();
  // Makes the connection one of the peer with this address.
  void Introduce(Connection* connection, std::string_view address,
                 uint64_t nonce);
  void Fail(Connection* connection, absl::Status status);
  void FailPeer(Peer* peer, absl::Status status);
  Operation* NewOperation(TransferId id);
  void Send(Peer* peer, Operation* operation, unsigned am_id,
            std::span<const std::byte> data);
  ucs_status_t ReceiveBlock(Receive receive, void* data, bool rendezvous);
  void Finish(Operation* operation, ucs_status_t status);
  void CloseFailed();
  bool IsQuiet() const;

  const uint32_t max_peers_;
  const uint64_t nonce_;  // Of this process, should its port be used again.
  std::unique_ptr<UcxContext> context_;
  std::unique_ptr<UcxWorker> worker_;
  ucp_listener_h listener_ = nullptr;
  std::string address_;
  int worker_fd_ = -1;  // The worker's.
  int wake_fd_ = -1;    // Ours; thread-safe.

  uint64_t last_id_ = 0;
  std::vector<ucp_conn_request_h> requests_;  // To be accepted.
  absl::flat_hash_map<ucp_ep_h, std::unique_ptr<Connection>> connections_;
  absl::flat_hash_map<PeerId, std::unique_ptr<Peer>> peers_;
  absl::flat_hash_map<std::string, PeerId> peer_of_address_;
  std::vector<Connection*> failed_;  // To be closed by the next Poll().
  // Being closed: UCX may refer to them until the request is done.
  std::vector<std::pair<ucs_status_ptr_t, std::unique_ptr<Connection>>>
      closing_;
  absl::flat_hash_map<TransferId, std::unique_ptr<Operation>> operations_;
  absl::flat_hash_map<uint64_t, Receive> receives_;  // Unmatched, by tag.
  absl::flat_hash_map<TransferId, uint64_t> receive_tags_;
  std::vector<TransportEvent> events_;
};

}  // namespace baton

#endif  // BATON_COMM_UCX_MESSENGER_H_
