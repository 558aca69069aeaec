// Transport over UCX: messages and blocks over tcp, and peers of one host map
// each other's region.
#ifndef BATON_COMM_UCX_TRANSPORT_H_
#define BATON_COMM_UCX_TRANSPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/transport.h"

namespace baton {

enum class UcxMode {
  kAuto,  // Map where possible, else tcp.
  kShm,   // Map, or fail.
  kTcp,   // Never map.
};

// "auto", "shm" or "tcp"; INVALID_ARGUMENT otherwise.
absl::StatusOr<UcxMode> ParseUcxMode(std::string_view text);

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
  const std::string& address() const override;
  const std::string& host_id() const override;
  const std::string& remote_key() const override;
  bool sends_blocks() const override;

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
  class Core;
  explicit UcxTransport(std::unique_ptr<Core> core);
  std::unique_ptr<Core> core_;
};

}  // namespace baton

#endif  // BATON_COMM_UCX_TRANSPORT_H_
