// The address that this process listens on for its peers.
#ifndef BATON_COMM_NETWORK_ADDRESS_H_
#define BATON_COMM_NETWORK_ADDRESS_H_

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

struct NetworkAddress {
  std::string device;  // Empty when decoded.
  sockaddr_storage address = {};

  socklen_t length() const;
  void set_port(uint16_t port);
};

// The address of the first of `devices` ("eth0,eth1") that has one, IPv4 before
// IPv6; of none: of the first that is not loopback, else of loopback.
// NOT_FOUND: no such device is up.
absl::StatusOr<NetworkAddress> FindNetworkAddress(std::string_view devices);

//   address := octet{4 | 16} port:u16    in network byte order
std::string EncodeNetworkAddress(const NetworkAddress& address);
std::optional<NetworkAddress> DecodeNetworkAddress(std::string_view bytes);

}  // namespace baton

#endif  // BATON_COMM_NETWORK_ADDRESS_H_
