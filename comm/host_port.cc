#include "comm/host_port.h"

namespace baton {
namespace {

constexpr uint32_t kMaxPort = 65535;
constexpr size_t kMaxPortDigits = 5;

std::optional<uint16_t> ParsePort(std::string_view text) {
  if (text.empty() || text.size() > kMaxPortDigits) return std::nullopt;
  uint32_t port = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    port = port * 10 + static_cast<uint32_t>(digit - '0');
  }
  if (port > kMaxPort) return std::nullopt;
  return static_cast<uint16_t>(port);
}

}  // namespace

std::optional<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const std::optional<uint16_t> port = ParsePort(text.substr(colon + 1));
  std::string_view host = text.substr(0, colon);
  const bool is_v6 =
      host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (is_v6) host = host.substr(1, host.size() - 2);
  const std::string_view never = is_v6 ? "[], " : ":[], ";
  if (!port.has_value() || host.empty() ||
      host.find_first_of(never) != std::string_view::npos) {
    return std::nullopt;
  }
  return HostPort{std::string(host), *port};
}

std::string FormatHostPort(const HostPort& address) {
  const bool is_v6 = address.host.find_first_of(':') != std::string::npos;
  return (is_v6 ? "[" + address.host + "]" : address.host) + ":" +
         std::to_string(address.port);
}

}  // namespace baton
