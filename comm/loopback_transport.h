// A network inside one process, for tests and simulations: deterministic when
// one thread polls all endpoints, and thread-safe when each has its own.
#ifndef BATON_COMM_LOOPBACK_TRANSPORT_H_
#define BATON_COMM_LOOPBACK_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "comm/transport.h"

namespace baton {

// What happens to one message or block on its way.
struct LoopbackFate {
  uint32_t copies = 1;  // 0: lost. A block counts as one at most.
  // Polls of the receiver that pass before it arrives; so later messages may
  // overtake it.
  uint32_t delay_polls = 0;
};

struct LoopbackEndpointOptions {
  bool maps_regions = true;  // As peers of one host do.
  bool sends_blocks = true;
};

// Outlives its endpoints' peers: regions stay mapped after their owner's death,
// until the network is destroyed. Thread-safe, but set the hook before use.
class LoopbackNetwork {
 public:
  LoopbackNetwork();
  ~LoopbackNetwork();
  LoopbackNetwork(const LoopbackNetwork&) = delete;
  LoopbackNetwork& operator=(const LoopbackNetwork&) = delete;

  // REQUIRES: the network outlives the transport. Destroying the transport is
  // a death that its peers are told of.
  std::unique_ptr<Transport> CreateEndpoint(std::string address,
                                            LoopbackEndpointOptions options);

  // Called for each message and block, with its sender, its receiver and its
  // bytes (none for a block).
  using Hook = std::function<LoopbackFate(
      std::string_view from, std::string_view to, std::string_view message)>;
  void set_hook(Hook hook);

  // The endpoint hears and says nothing any more. `told`: its peers learn it.
  void Kill(std::string_view address, bool told);

 private:
  friend class LoopbackTransport;
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace baton

#endif  // BATON_COMM_LOOPBACK_TRANSPORT_H_
