// "host:port", as in flags.
#ifndef BATON_COMM_HOST_PORT_H_
#define BATON_COMM_HOST_PORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

struct HostPort {
  std::string host;  // Without the brackets of an IPv6 address.
  uint16_t port = 0;
};

// "host:port" or "[v6]:port"; nothing for all else.
std::optional<HostPort> ParseHostPort(std::string_view text);
std::string FormatHostPort(const HostPort& address);

}  // namespace baton

#endif  // BATON_COMM_HOST_PORT_H_
