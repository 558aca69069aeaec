// Transport over UCX: messages and blocks over tcp, and peers of one host map
// each other's region.
#ifndef BATON_COMM_UCX_TRANSPORT_H_
#define BATON_COMM_UCX_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport.h"

namespace baton {

class SharedRegion;
class SharedRegionView;
class UcxMessenger;

enum class UcxMode {
  kAuto,  // Map where possible, else tcp.
  kShm,   // Map, or fail.
  kTcp,   // Never map.
};

struct UcxTransportOptions {
  UcxMode mode = UcxMode::kAuto;
  // Network devices to listen on and to connect from, comma-separated ("lo",
  // "eth0"); empty: all. A server that stays on loopback says "lo".
  std::string network_devices;
  uint32_t max_peers = 1024;
};

// Endpoints know of a dead peer at once, also when its region is mapped: only
// block reads go through shared memory, messages never do.
class UcxTransport final : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(
      const UcxTransportOptions& options);
  ~UcxTransport() override;

  absl::StatusOr<std::byte*> AllocateRegion(size_t bytes) override;
  const std::string& address() const override { return address_; }
  const std::string& host_id() const override { return host_id_; }
  // Names of the ways in which blocks can move from and to this transport.
  // Between two that share none they cannot.
  std::vector<std::string> ways() const;
  const std::string& remote_key() const override { return remote_key_; }
  bool sends_blocks() const override { return mode_ != UcxMode::kShm; }

  absl::StatusOr<PeerId> Connect(std::string_view address) override;
  const std::byte* MapRemote(PeerId peer, const RemoteRegion& region) override;
  void SendMessage(PeerId peer, std::string message) override;
  TransferId PostSend(PeerId peer, uint64_t tag,
                      std::span<const std::byte> bytes) override;
  TransferId PostReceive(uint64_t tag, std::span<std::byte> bytes) override;
  void Cancel(TransferId receive) override;
  void ClosePeer(PeerId peer) override;
  void Poll(std::vector<TransportEvent>* events) override;
  void Wait(absl::Duration timeout) override;
  void Wake() override;

 private:
  // How a connected peer's region is reached.
  struct PeerMemory {
    std::unique_ptr<SharedRegionView> mapping;
    bool unmappable = false;  // Found out and logged.
  };

  UcxTransport(UcxMode mode, std::unique_ptr<UcxMessenger> messenger);
  bool maps() const { return mode_ != UcxMode::kTcp; }
  void Map(PeerId peer, const RemoteRegion& region, PeerMemory* memory);

  const UcxMode mode_;
  const std::string host_id_;
  std::unique_ptr<SharedRegion> shared_region_;  // Null with kTcp.
  std::span<std::byte> private_region_;          // With kTcp.
  std::unique_ptr<UcxMessenger> messenger_;
  const std::string address_;
  std::string remote_key_;

  absl::flat_hash_map<PeerId, PeerMemory> peer_memory_;
};

}  // namespace baton

#endif  // BATON_COMM_UCX_TRANSPORT_H_
