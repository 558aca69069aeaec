#include "comm/ucx_messenger.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>

#include "base/logging.h"
#include "base/status_macros.h"
#include "comm/ucx_status.h"

namespace baton {
namespace {

// Active message ids.
constexpr unsigned kMessageAm = 1;  // Data: the message.
constexpr unsigned kBlockAm = 2;    // Header: the tag. Data: the block.

// Rounds of progress in one Poll().
constexpr int kMaxProgress = 64;
// Of the destructor, for what UCX still holds of ours.
constexpr absl::Duration kShutdownTimeout = absl::Seconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<UcxMessenger>> UcxMessenger::Create(
    const std::string& network_devices, uint32_t max_peers) {
  std::unique_ptr<UcxMessenger> messenger(new UcxMessenger(max_peers));
  RETURN_IF_ERROR(messenger->Start(network_devices));
  return messenger;
}

absl::Status UcxMessenger::Start(const std::string& network_devices) {
  std::vector<std::pair<std::string, std::string>> config = {{"TLS", "tcp"}};
  if (!network_devices.empty()) {
    config.emplace_back("NET_DEVICES", network_devices);
  }
  ASSIGN_OR_RETURN(context_, UcxContext::Create(
                                 UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, config));
  ASSIGN_OR_RETURN(worker_, UcxWorker::Create(*context_));
  ASSIGN_OR_RETURN(address_, worker_->Address());
  RETURN_IF_ERROR(UcxStatus(ucp_worker_get_efd(worker_->get(), &worker_fd_),
                            "ucp_worker_get_efd"));
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0) return absl::ResourceExhaustedError("no eventfd");
  for (const auto& [id, callback] :
       {std::pair(kMessageAm, &OnMessage), std::pair(kBlockAm, &OnBlock)}) {
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
  return absl::OkStatus();
}

UcxMessenger::~UcxMessenger() {
  for (const auto& [id, peer] : peers_) {
    MarkFailed(peer.get(), absl::CancelledError("closed"));
  }
  // After their endpoints' forced end, operations end without any peer's help.
  const absl::Time deadline = absl::Now() + kShutdownTimeout;
  std::vector<TransportEvent> untold;
  while (!(failed_.empty() && operations_.empty() && closing_.empty()) &&
         absl::Now() < deadline) {
    Poll(&untold);
  }
  worker_.reset();
  if (wake_fd_ >= 0) close(wake_fd_);
}

absl::StatusOr<PeerId> UcxMessenger::Connect(std::string_view address) {
  const auto known = peer_of_address_.find(std::string(address));
  if (known != peer_of_address_.end()) return known->second;
  if (peers_.size() >= max_peers_) {
    return absl::ResourceExhaustedError("too many peers");
  }
  auto peer = std::make_unique<Peer>();
  peer->owner = this;
  peer->id = PeerId(++last_id_);
  peer->address = address;
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer->address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&OnPeerError, peer.get()};
  RETURN_IF_ERROR(
      UcxStatus(ucp_ep_create(worker_->get(), &params, &peer->endpoint),
                "ucp_ep_create"));
  const PeerId id = peer->id;
  peer_of_address_.emplace(peer->address, id);
  peers_.emplace(id, std::move(peer));
  return id;
}

void UcxMessenger::SendMessage(PeerId id, std::string message) {
  CHECK_LE(message.size(), kMaxMessageBytes);
  Peer* peer = FindLive(id);
  if (peer == nullptr) return;
  Operation* operation = NewOperation(NextTransfer());
  operation->message = std::move(message);
  Send(peer, operation, std::as_bytes(std::span(operation->message)));
}

TransferId UcxMessenger::PostSend(PeerId id, uint64_t tag,
                                  std::span<const std::byte> bytes) {
  Operation* operation = NewOperation(NextTransfer());
  const TransferId transfer = operation->id;
  operation->is_block = true;
  operation->tag = tag;
  if (Peer* peer = FindLive(id); peer != nullptr) {
    Send(peer, operation, bytes);
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
  if (Peer* peer = FindLive(id); peer != nullptr) {
    MarkFailed(peer, absl::CancelledError("closed"));
  }
}

void UcxMessenger::Poll(std::vector<TransportEvent>* events) {
  for (int i = 0; i < kMaxProgress && ucp_worker_progress(worker_->get()) != 0;
       ++i) {
  }
  CloseFailed();
  ReapClosed();
  std::move(events_.begin(), events_.end(), std::back_inserter(*events));
  events_.clear();
}

void UcxMessenger::Wait(absl::Duration timeout) {
  if (!events_.empty() || !failed_.empty() || !closing_.empty()) return;
  // Anything but OK means that progress is to be made first.
  if (ucp_worker_arm(worker_->get()) != UCS_OK) return;
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

void UcxMessenger::OnPeerError(void* arg, ucp_ep_h, ucs_status_t status) {
  auto* peer = static_cast<Peer*>(arg);
  peer->owner->MarkFailed(peer, UcxStatus(status, "peer"));
}

ucs_status_t UcxMessenger::OnMessage(void* arg, const void*, size_t, void* data,
                                     size_t bytes,
                                     const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxMessenger*>(arg);
  // Ours come eagerly; another protocol or size is nobody we know.
  const bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
  if (rendezvous || bytes > kMaxMessageBytes) return UCS_OK;
  self->events_.push_back(
      MessageReceived{std::string(static_cast<const char*>(data), bytes)});
  return UCS_OK;
}

// OK without a receive drops the block and ends the sender's send.
ucs_status_t UcxMessenger::OnBlock(void* arg, const void* header,
                                   size_t header_bytes, void* data,
                                   size_t bytes,
                                   const ucp_am_recv_param_t* param) {
  auto* self = static_cast<UcxMessenger*>(arg);
  uint64_t tag = 0;
  if (header_bytes != sizeof tag) return UCS_OK;
  std::memcpy(&tag, header, sizeof tag);
  const auto it = self->receives_.find(tag);
  if (it == self->receives_.end() || it->second.bytes.size() != bytes) {
    return UCS_OK;
  }
  const Receive receive = it->second;
  self->receives_.erase(it);
  self->receive_tags_.erase(receive.id);
  return self->ReceiveBlock(receive, data,
                            param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
}

ucs_status_t UcxMessenger::ReceiveBlock(Receive receive, void* data,
                                        bool rendezvous) {
  if (!rendezvous) {
    std::memcpy(receive.bytes.data(), data, receive.bytes.size());
    events_.push_back(TransferDone{receive.id, absl::OkStatus()});
    return UCS_OK;
  }
  Operation* operation = NewOperation(receive.id);
  operation->is_block = true;
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

UcxMessenger::Peer* UcxMessenger::FindLive(PeerId id) {
  const auto it = peers_.find(id);
  if (it == peers_.end() || !it->second->failure.ok()) return nullptr;
  return it->second.get();
}

void UcxMessenger::MarkFailed(Peer* peer, absl::Status failure) {
  if (!peer->failure.ok()) return;
  peer->failure = std::move(failure);
  failed_.push_back(peer->id);
}

UcxMessenger::Operation* UcxMessenger::NewOperation(TransferId id) {
  auto operation = std::make_unique<Operation>();
  operation->owner = this;
  operation->id = id;
  Operation* const borrowed = operation.get();
  operations_.emplace(id, std::move(operation));
  return borrowed;
}

void UcxMessenger::Send(Peer* peer, Operation* operation,
                        std::span<const std::byte> data) {
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  params.flags =
      operation->is_block ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = &OnSent;
  params.user_data = operation;
  const unsigned am_id = operation->is_block ? kBlockAm : kMessageAm;
  const size_t header_bytes = operation->is_block ? sizeof operation->tag : 0;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(peer->endpoint, am_id, &operation->tag, header_bytes,
                      data.data(), data.size(), &params);
  if (request == nullptr) {
    Finish(operation, UCS_OK);
  } else if (UCS_PTR_IS_ERR(request)) {
    MarkFailed(peer, UcxStatus(UCS_PTR_STATUS(request), "ucp_am_send_nbx"));
    Finish(operation, UCS_PTR_STATUS(request));
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
  for (PeerId id : std::exchange(failed_, {})) {
    const auto it = peers_.find(id);
    if (it == peers_.end()) continue;  // Failed before Connect() returned.
    std::unique_ptr<Peer> peer = std::move(it->second);
    peers_.erase(it);
    peer_of_address_.erase(peer->address);
    events_.push_back(PeerFailed{id, peer->failure});
    ucp_request_param_t params = {};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    closing_.emplace_back(ucp_ep_close_nbx(peer->endpoint, &params),
                          std::move(peer));
  }
}

void UcxMessenger::ReapClosed() {
  std::erase_if(closing_, [](const auto& closing) {
    const ucs_status_ptr_t request = closing.first;
    if (!UCS_PTR_IS_PTR(request)) return true;
    if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucp_request_free(request);
    return true;
  });
}

}  // namespace baton
