#include "comm/ucx_transport.h"

#include <sys/mman.h>

#include <cstring>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "comm/host_id.h"
#include "comm/sealed_bytes.h"
#include "comm/shared_region.h"
#include "comm/ucx_messenger.h"

namespace baton {

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(
    const UcxTransportOptions& options) {
  ASSIGN_OR_RETURN(auto messenger, UcxMessenger::Create(options.network_devices,
                                                        options.max_peers));
  return std::unique_ptr<UcxTransport>(
      new UcxTransport(options.mode, std::move(messenger)));
}

UcxTransport::UcxTransport(UcxMode mode,
                           std::unique_ptr<UcxMessenger> messenger)
    : mode_(mode),
      host_id_(ReadHostId()),
      messenger_(std::move(messenger)),
      //   address := sealed(the messenger's)
      address_(SealBytes(messenger_->address())) {}

UcxTransport::~UcxTransport() {
  messenger_.reset();  // Nothing is sent from the region any more.
  if (!private_region_.empty()) {
    munmap(private_region_.data(), private_region_.size());
  }
}

std::vector<std::string> UcxTransport::ways() const {
  std::vector<std::string> ways;
  if (maps()) ways.push_back(absl::StrCat("shm@", host_id_));
  if (sends_blocks()) ways.push_back("tcp");
  return ways;
}

absl::StatusOr<std::byte*> UcxTransport::AllocateRegion(size_t bytes) {
  CHECK(shared_region_ == nullptr && private_region_.empty());
  if (maps()) {
    ASSIGN_OR_RETURN(shared_region_, SharedRegion::Create(bytes));
    remote_key_ = shared_region_->key();
    return shared_region_->data();
  }
  void* const region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (region == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(bytes, " bytes of memory: mmap refuses them"));
  }
  private_region_ = {static_cast<std::byte*>(region), bytes};
  std::memset(region, 0, bytes);
  return private_region_.data();
}

absl::StatusOr<PeerId> UcxTransport::Connect(std::string_view address) {
  const std::optional<std::string_view> unsealed = UnsealBytes(address);
  if (!unsealed.has_value() || unsealed->empty()) {
    return absl::InvalidArgumentError("worker_address: not one of ours");
  }
  ASSIGN_OR_RETURN(const PeerId peer, messenger_->Connect(*unsealed));
  peer_memory_.try_emplace(peer);
  return peer;
}

const std::byte* UcxTransport::MapRemote(PeerId peer,
                                         const RemoteRegion& region) {
  const auto it = peer_memory_.find(peer);
  if (!maps() || it == peer_memory_.end()) return nullptr;
  PeerMemory& memory = it->second;
  if (memory.mapping == nullptr && !memory.unmappable) {
    Map(peer, region, &memory);
  }
  if (memory.mapping == nullptr ||
      !memory.mapping->Is(region.base_address, region.bytes)) {
    return nullptr;
  }
  return memory.mapping->address();
}

void UcxTransport::Map(PeerId peer, const RemoteRegion& region,
                       PeerMemory* memory) {
  if (region.host_id != host_id_ || region.remote_key.empty()) {
    memory->unmappable = true;
    LOG(INFO) << "kv_peer " << peer
              << " transport tcp reason not-of-this-host-and-its-namespaces";
    return;
  }
  auto mapping = SharedRegionView::Map(region.remote_key);
  if (!mapping.ok()) {
    // A damaged key says nothing of the next one.
    memory->unmappable = !absl::IsInvalidArgument(mapping.status());
    LOG(WARNING) << "kv_peer " << peer << " transport tcp reason "
                 << mapping.status().ToString();
    return;
  }
  memory->mapping = *std::move(mapping);
}

void UcxTransport::SendMessage(PeerId peer, std::string message) {
  messenger_->SendMessage(peer, std::move(message));
}

TransferId UcxTransport::PostSend(PeerId peer, uint64_t tag,
                                  std::span<const std::byte> bytes) {
  CHECK(sends_blocks());
  return messenger_->PostSend(peer, tag, bytes);
}

TransferId UcxTransport::PostReceive(uint64_t tag, std::span<std::byte> bytes) {
  CHECK(sends_blocks());
  return messenger_->PostReceive(tag, bytes);
}

void UcxTransport::Cancel(TransferId receive) { messenger_->Cancel(receive); }

void UcxTransport::ClosePeer(PeerId peer) { messenger_->ClosePeer(peer); }

void UcxTransport::Poll(std::vector<TransportEvent>* events) {
  const size_t before = events->size();
  messenger_->Poll(events);
  for (size_t i = before; i < events->size(); ++i) {
    if (const auto* failed = std::get_if<PeerFailed>(&(*events)[i])) {
      peer_memory_.erase(failed->peer);
    }
  }
}

void UcxTransport::Wait(absl::Duration timeout) { messenger_->Wait(timeout); }

void UcxTransport::Wake() { messenger_->Wake(); }

}  // namespace baton
