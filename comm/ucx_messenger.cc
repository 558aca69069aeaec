#include "comm/ucx_messenger.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>

#include "base/logging.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "comm/ucx_status.h"
#include "comm/wire.h"

namespace baton {
namespace {

// Active message ids.
constexpr unsigned kHelloAm = 1;    // Data: the sender's address.
constexpr unsigned kMessageAm = 2;  // Data: the message.
constexpr unsigned kBlockAm = 3;    // Data: the block.
constexpr int kMaxProgress = 64;    // Rounds in one Poll().
// Of the destructor, for what UCX still holds of ours.
constexpr absl::Duration kConnectingGrace = absl::Milliseconds(50);
constexpr absl::Duration kShutdownTimeout = absl::Seconds(2);

//   address := nonce:u64 network_address:bytes
struct Address {
  uint64_t nonce = 0;
  NetworkAddress network;
};

std::optional<Address> ParseAddress(std::string_view bytes) {
  WireReader in(bytes);
  const uint64_t nonce = in.Int<uint64_t>();
  const auto network = DecodeNetworkAddress(in.Bytes());
  if (!in.done() || !network.has_value()) return std::nullopt;
  return Address{nonce, *network};
}

ucs_sock_addr_t UcxAddress(const NetworkAddress& address) {
  return {reinterpret_cast<const sockaddr*>(&address.address),
          address.length()};
}

bool IsRendezvous(const ucp_am_recv_param_t* param) {
  return param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxMessenger>> UcxMessenger::Create(
    const std::string& network_devices, uint32_t max_peers) {
  std::unique_ptr<UcxMessenger> messenger(new UcxMessenger(max_peers));
  RETURN_IF_ERROR(messenger->Start(network_devices));
  return messenger;
}

UcxMessenger::UcxMessenger(uint32_t max_peers)
    : max_peers_(max_peers), nonce_(RandomBits()) {}

absl::Status UcxMessenger::Start(const std::string& network_devices) {
  ASSIGN_OR_RETURN(const NetworkAddress network,
                   FindNetworkAddress(network_devices));
  // UCX 1.13.1 aborts as a peer goes (tcp_ep.c): with PUT, which waits for its
  // word; with zero copies, which end twice. Buffers of 8 KiB are slow.
  ASSIGN_OR_RETURN(context_,
                   UcxContext::Create(UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                                      {{"TLS", "tcp"},
                                       {"NET_DEVICES", network.device},
                                       {"PUT_ENABLE", "n"},
                                       {"ZCOPY_THRESH", "inf"},
                                       {"RX_SEG_SIZE", "512k"},
                                       {"TX_SEG_SIZE", "64k"}}));
  ASSIGN_OR_RETURN(worker_, UcxWorker::Create(*context_));
  RETURN_IF_ERROR(UcxStatus(ucp_worker_get_efd(worker_->get(), &worker_fd_),
                            "ucp_worker_get_efd"));
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0) return absl::ResourceExhaustedError("no eventfd");
  for (const auto& [id, callback] :
       {std::pair(kHelloAm, &OnHello), std::pair(kMessageAm, &OnMessage),
        std::pair(kBlockAm, &OnBlock)}) {
    ucp_am_handler_param_t handler = {};
    handler.field_mask =
        UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
        UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = id;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.cb = callback;
    handler.arg = this;
    RETURN_IF_ERROR(
        UcxStatus(ucp_worker_set_am_recv_handler(worker_->get(), &handler),
                  "ucp_worker_set_am_recv_handler"));
  }
  return Listen(network);
}

absl::Status UcxMessenger::Listen(NetworkAddress address) {
  address.set_port(0);
  ucp_listener_params_t params = {};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                      UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = UcxAddress(address);
  params.conn_handler = {&OnConnectionRequest, this};
  RETURN_IF_ERROR(
      UcxStatus(ucp_listener_create(worker_->get(), &params, &listener_),
                "ucp_listener_create on " + address.device));
  ucp_listener_attr_t attributes = {};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  RETURN_IF_ERROR(UcxStatus(ucp_listener_query(listener_, &attributes),
                            "ucp_listener_query"));
  address.address = attributes.sockaddr;
  address_ =
      WireWriter().Int(nonce_).Bytes(EncodeNetworkAddress(address)).Take();
  return absl::OkStatus();
}

UcxMessenger::~UcxMessenger() {
  for (const auto& [endpoint, connection] : connections_) {
    Fail(connection.get(), absl::CancelledError("closed"));
  }
  // After their endpoints' forced end, operations end without any peer's help.
  const absl::Time deadline = absl::Now() + kShutdownTimeout;
  std::vector<TransportEvent> untold;
  while (!(IsQuiet() && operations_.empty()) && absl::Now() < deadline) {
    Poll(&untold);
  }
  // UCX 1.13.1 crashes where a peer is still connecting when the listener goes.
  const absl::Time last_hello = absl::Now() + kConnectingGrace;
  while (listener_ != nullptr && absl::Now() < last_hello) {
    Poll(&untold);
    Wait(last_hello - absl::Now());
  }
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  worker_.reset();
  if (wake_fd_ >= 0) close(wake_fd_);
}

absl::StatusOr<PeerId> UcxMessenger::Connect(std::string_view address) {
  const auto known = peer_of_address_.find(std::string(address));
  if (known != peer_of_address_.end()) return known->second;
  if (peers_.size() >= max_peers_) {
    return absl::ResourceExhaustedError("too many peers");
  }
  const std::optional<Address> parsed = ParseAddress(address);
  if (!parsed.has_value()) {
    return absl::InvalidArgumentError("not a messenger's address");
  }
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = UcxAddress(parsed->network);
  ASSIGN_OR_RETURN(Connection* const connection, OpenConnection(params));
  Introduce(connection, address, parsed->nonce);
  const PeerId id = connection->peer;
  Operation* const hello = NewOperation(NextTransfer());
  hello->message = address_;
  Send(FindPeer(id), hello, kHelloAm, std::as_bytes(std::span(hello->message)));
  return id;
}

void UcxMessenger::Introduce(Connection* connection, std::string_view address,
                             uint64_t nonce) {
  PeerId& id = peer_of_address_[std::string(address)];
  if (id == PeerId()) {
    id = PeerId(++last_id_);
    auto peer = std::make_unique<Peer>();
    peer->id = id;
    peer->address = address;
    peer->nonce = nonce;
    peers_.emplace(id, std::move(peer));
  }
  connection->peer = id;
  FindPeer(id)->connections.push_back(connection);
}

absl::StatusOr<UcxMessenger::Connection*> UcxMessenger::OpenConnection(
    ucp_ep_params_t params) {
  auto connection = std::make_unique<Connection>();
  connection->owner = this;
  params.field_mask |=
      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&OnError, connection.get()};
  const ucs_status_t created =
      ucp_ep_create(worker_->get(), &params, &connection->endpoint);
  if (created != UCS_OK) {
    std::erase(failed_, connection.get());
    return UcxStatus(created, "ucp_ep_create");
  }
  Connection* const borrowed = connection.get();
  connections_.emplace(borrowed->endpoint, std::move(connection));
  if (borrowed->failed) {  // Meanwhile; CloseFailed() has it.
    return absl::UnavailableError("the connection failed at once");
  }
  return borrowed;
}

void UcxMessenger::AcceptConnections() {
  for (ucp_conn_request_h request : std::exchange(requests_, {})) {
    // Two a peer: one in each direction.
    if (connections_.size() >= 2 * size_t{max_peers_}) {
      ucp_listener_reject(listener_, request);
      continue;
    }
    ucp_ep_params_t params = {};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = request;
    const auto connection = OpenConnection(params);
    VLOG(1) << "kv_messenger accepts: " << connection.status().ToString();
  }
}

void UcxMessenger::SendMessage(PeerId id, std::string message) {
  CHECK_LE(message.size(), kMaxMessageBytes);
  Peer* peer = FindPeer(id);
  if (peer == nullptr) return;
  Operation* operation = NewOperation(NextTransfer());
  operation->message = std::move(message);
  Send(peer, operation, kMessageAm,
       std::as_bytes(std::span(operation->message)));
}

TransferId UcxMessenger::PostSend(PeerId id, uint64_t tag,
                                  std::span<const std::byte> bytes) {
  const TransferId transfer = NextTransfer();
  Operation* operation = NewOperation(transfer);
  operation->is_block = true;
  operation->header.tag = tag;
  if (Peer* peer = FindPeer(id); peer != nullptr) {
    Send(peer, operation, kBlockAm, bytes);
  } else {
    Finish(operation, UCS_ERR_NOT_CONNECTED);
  }
  return transfer;
}

TransferId UcxMessenger::PostReceive(uint64_t tag, std::span<std::byte> bytes) {
  const TransferId id = NextTransfer();
  CHECK(receives_.emplace(tag, Receive{id, bytes}).second) << "tag " << tag;
  receive_tags_.emplace(id, tag);
  return id;
}

void UcxMessenger::Cancel(TransferId receive) {
  const auto it = receive_tags_.find(receive);
  if (it == receive_tags_.end()) return;  // Matched, or ended.
  receives_.erase(it->second);
  receive_tags_.erase(it);
  events_.push_back(TransferDone{receive, absl::CancelledError("cancelled")});
}

void UcxMessenger::ClosePeer(PeerId id) {
  Peer* const peer = FindPeer(id);
  if (peer != nullptr) FailPeer(peer, absl::CancelledError("closed"));
}

void UcxMessenger::Poll(std::vector<TransportEvent>* events) {
  int rounds = 0;
  while (ucp_worker_progress(worker_->get()) != 0 && ++rounds < kMaxProgress) {
  }
  AcceptConnections();
  CloseFailed();
  std::erase_if(closing_, [](const auto& closing) {
    const ucs_status_ptr_t request = closing.first;
    if (!UCS_PTR_IS_PTR(request)) return true;
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
  std::move(events_.begin(), events_.end(), std::back_inserter(*events));
  events_.clear();
}

bool UcxMessenger::IsQuiet() const {
  return requests_.empty() && failed_.empty() && closing_.empty() &&
         events_.empty();
}

void UcxMessenger::Wait(absl::Duration timeout) {
  // Anything but OK means that progress is to be made first.
  if (!IsQuiet() || ucp_worker_arm(worker_->get()) != UCS_OK) return;
  pollfd fds[] = {{worker_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  const int64_t milliseconds = std::clamp<int64_t>(
      absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1))), 0,
      std::numeric_limits<int>::max());
  poll(fds, std::size(fds), static_cast<int>(milliseconds));
  uint64_t wakes = 0;
  if (read(wake_fd_, &wakes, sizeof wakes) < 0) CHECK_EQ(errno, EAGAIN);
}

void UcxMessenger::Wake() {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so it is awake anyway.
  if (write(wake_fd_, &one, sizeof one) < 0) CHECK_EQ(errno, EAGAIN);
}

void UcxMessenger::OnConnectionRequest(ucp_conn_request_h request, void* arg) {
  static_cast<UcxMessenger*>(arg)->requests_.push_back(request);
}

void UcxMessenger::OnError(void* arg, ucp_ep_h, ucs_status_t status) {
  auto* connection = static_cast<Connection*>(arg);
  connection->owner->Fail(connection, UcxStatus(status, "peer"));
}

// NOLINTNEXTLINE(readability-function-size): UCX's signature.
ucs_status_t UcxMessenger::OnHello(void* arg, const void* header,
                                   size_t header_size, void* data, size_t size,
                                   const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxMessenger*>(arg);
  if (IsRendezvous(param) ||
      !(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)) {
    return UCS_OK;
  }
  const auto it = self->connections_.find(param->reply_ep);
  if (it == self->connections_.end()) return UCS_OK;
  Connection* connection = it->second.get();
  if (connection->failed || connection->peer != PeerId()) return UCS_OK;
  const std::string address(static_cast<const char*>(data), size);
  const std::optional<Address> parsed = ParseAddress(address);
  if (!self->OwnHeader(header, header_size).has_value() ||
      !parsed.has_value()) {
    self->Fail(connection, absl::InvalidArgumentError("not for this process"));
  } else if (self->peers_.size() >= self->max_peers_ &&
             !self->peer_of_address_.contains(address)) {
    self->Fail(connection, absl::ResourceExhaustedError("too many peers"));
  } else {
    self->Introduce(connection, address, parsed->nonce);
  }
  return UCS_OK;
}

// NOLINTNEXTLINE(readability-function-size): UCX's signature.
ucs_status_t UcxMessenger::OnMessage(void* arg, const void* header,
                                     size_t header_size, void* data,
                                     size_t size,
                                     const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxMessenger*>(arg);
  // Ours come eagerly; another protocol or size is nobody we know.
  if (self->OwnHeader(header, header_size).has_value() &&
      !IsRendezvous(param) && size <= kMaxMessageBytes) {
    self->events_.push_back(
        MessageReceived{std::string(static_cast<const char*>(data), size)});
  }
  return UCS_OK;
}

// OK without a receive drops the block and ends the sender's send.
// NOLINTNEXTLINE(readability-function-size): UCX's signature.
ucs_status_t UcxMessenger::OnBlock(void* arg, const void* header,
                                   size_t header_size, void* data, size_t size,
                                   const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxMessenger*>(arg);
  const std::optional<Header> own = self->OwnHeader(header, header_size);
  if (!own.has_value()) return UCS_OK;
  const auto it = self->receives_.find(own->tag);
  if (it == self->receives_.end() || it->second.bytes.size() != size) {
    return UCS_OK;
  }
  const Receive receive = it->second;
  self->receives_.erase(it);
  self->receive_tags_.erase(receive.id);
  return self->ReceiveBlock(receive, data, IsRendezvous(param));
}

ucs_status_t UcxMessenger::ReceiveBlock(Receive receive, void* data,
                                        bool rendezvous) {
  Operation* operation = NewOperation(receive.id);
  operation->is_block = true;
  if (!rendezvous) {
    std::memcpy(receive.bytes.data(), data, receive.bytes.size());
    Finish(operation, UCS_OK);
    return UCS_OK;
  }
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv_am = &OnReceived;
  params.user_data = operation;
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_->get(), data, receive.bytes.data(),
                           receive.bytes.size(), &params);
  if (UCS_PTR_IS_ERR(request)) {
    Finish(operation, UCS_PTR_STATUS(request));
    return UCS_OK;
  }
  return UCS_INPROGRESS;
}

void UcxMessenger::OnSent(void* request, ucs_status_t status, void* arg) {
  auto* const sent = static_cast<Operation*>(arg);
  sent->owner->Finish(sent, status);
  ucp_request_free(request);
}

void UcxMessenger::OnReceived(void* request, ucs_status_t status, size_t,
                              void* arg) {
  auto* const received = static_cast<Operation*>(arg);
  received->owner->Finish(received, status);
  ucp_request_free(request);
}

std::optional<UcxMessenger::Header> UcxMessenger::OwnHeader(const void* header,
                                                            size_t size) const {
  Header own;
  if (size != sizeof own) return std::nullopt;
  std::memcpy(&own, header, sizeof own);  // It may lie anywhere.
  if (own.nonce != nonce_) return std::nullopt;
  return own;
}

UcxMessenger::Peer* UcxMessenger::FindPeer(PeerId id) {
  const auto it = peers_.find(id);
  if (it == peers_.end() || !it->second->failure.ok()) return nullptr;
  return it->second.get();
}

void UcxMessenger::Fail(Connection* connection, absl::Status status) {
  if (connection->failed) return;
  connection->failed = true;
  failed_.push_back(connection);
  Peer* peer = FindPeer(connection->peer);
  if (peer != nullptr) FailPeer(peer, std::move(status));
}

void UcxMessenger::FailPeer(Peer* peer, absl::Status status) {
  peer->failure = std::move(status);
  peer_of_address_.erase(peer->address);
  for (Connection* c : peer->connections) Fail(c, peer->failure);
}

UcxMessenger::Operation* UcxMessenger::NewOperation(TransferId id) {
  auto operation = std::make_unique<Operation>();
  operation->owner = this;
  operation->id = id;
  Operation* const borrowed = operation.get();
  operations_.emplace(id, std::move(operation));
  return borrowed;
}

void UcxMessenger::Send(Peer* peer, Operation* operation, unsigned am_id,
                        std::span<const std::byte> data) {
  operation->header.nonce = peer->nonce;
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags =
      am_id == kBlockAm ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  if (am_id == kHelloAm) params.flags |= UCP_AM_SEND_FLAG_REPLY;
  params.cb.send = &OnSent;
  params.user_data = operation;
  Connection* connection = peer->connections.front();
  const ucs_status_ptr_t request = ucp_am_send_nbx(
      connection->endpoint, am_id, &operation->header, sizeof operation->header,
      data.data(), data.size(), &params);
  if (request == nullptr) {
    Finish(operation, UCS_OK);
  } else if (UCS_PTR_IS_ERR(request)) {
    Finish(operation, UCS_PTR_STATUS(request));
    Fail(connection, UcxStatus(UCS_PTR_STATUS(request), "ucp_am_send_nbx"));
  }
}

void UcxMessenger::Finish(Operation* operation, ucs_status_t status) {
  if (operation->is_block) {
    events_.push_back(TransferDone{operation->id, UcxStatus(status, "block")});
  }
  operations_.erase(operation->id);
}

void UcxMessenger::CloseFailed() {
  // Closing ends operations, whose callbacks may find more failures.
  for (Connection* failed : std::exchange(failed_, {})) {
    auto connection = std::move(connections_.at(failed->endpoint));
    connections_.erase(failed->endpoint);
    if (const auto it = peers_.find(failed->peer); it != peers_.end()) {
      Peer* const peer = it->second.get();
      if (peer->failure.ok()) {
        FailPeer(peer, absl::UnavailableError("its connection failed"));
      }
      events_.push_back(PeerFailed{failed->peer, peer->failure});
      peers_.erase(it);
    }
    ucp_request_param_t params = {};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    closing_.emplace_back(ucp_ep_close_nbx(failed->endpoint, &params),
                          std::move(connection));
  }
}

}  // namespace baton
