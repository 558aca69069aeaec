#include "comm/network_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>
#include <vector>

namespace baton {
namespace {

struct Candidate {
  NetworkAddress address;
  bool loopback = false;
};

bool IsUsable(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || !(entry.ifa_flags & IFF_UP)) return false;
  if (entry.ifa_addr->sa_family == AF_INET) return true;
  if (entry.ifa_addr->sa_family != AF_INET6) return false;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
  return !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
}

// Of all devices that are up, in the system's order, IPv4 first.
std::vector<Candidate> ListCandidates() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owned(list,
                                                               &freeifaddrs);
  std::vector<Candidate> candidates;
  for (const sa_family_t family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
      if (!IsUsable(*entry) || entry->ifa_addr->sa_family != family) continue;
      Candidate candidate;
      candidate.address.device = entry->ifa_name;
      candidate.loopback = entry->ifa_flags & IFF_LOOPBACK;
      candidate.address.address.ss_family = family;
      std::memcpy(&candidate.address.address, entry->ifa_addr,
                  candidate.address.length());
      candidates.push_back(std::move(candidate));
    }
  }
  return candidates;
}

std::vector<std::string_view> Split(std::string_view names) {
  std::vector<std::string_view> parts;
  while (!names.empty()) {
    const size_t comma = names.find(',');
    parts.push_back(names.substr(0, comma));
    if (comma == std::string_view::npos) break;
    names.remove_prefix(comma + 1);
  }
  return parts;
}

template <typename Address>
auto& As(const NetworkAddress& address) {
  return reinterpret_cast<const Address&>(address.address);
}

}  // namespace

socklen_t NetworkAddress::length() const {
  return address.ss_family == AF_INET ? sizeof(sockaddr_in)
                                      : sizeof(sockaddr_in6);
}

void NetworkAddress::set_port(uint16_t port) {
  // Both kinds have it at the same place.
  static_assert(offsetof(sockaddr_in, sin_port) ==
                offsetof(sockaddr_in6, sin6_port));
  reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
}

absl::StatusOr<NetworkAddress> FindNetworkAddress(std::string_view devices) {
  const std::vector<Candidate> candidates = ListCandidates();
  for (std::string_view device : Split(devices)) {
    for (const Candidate& c : candidates) {
      if (c.address.device == device) return c.address;
    }
  }
  if (!devices.empty()) {
    return absl::NotFoundError("no network device of these is up: " +
                               std::string(devices));
  }
  for (const bool loopback : {false, true}) {
    for (const Candidate& c : candidates) {
      if (c.loopback == loopback) return c.address;
    }
  }
  return absl::NotFoundError("no network device is up");
}

std::string EncodeNetworkAddress(const NetworkAddress& address) {
  const auto bytes = [](const auto& field) {
    return std::string(reinterpret_cast<const char*>(&field), sizeof field);
  };
  if (address.address.ss_family == AF_INET) {
    const auto& v4 = As<sockaddr_in>(address);
    return bytes(v4.sin_addr) + bytes(v4.sin_port);
  }
  const auto& v6 = As<sockaddr_in6>(address);
  return bytes(v6.sin6_addr) + bytes(v6.sin6_port);
}

std::optional<NetworkAddress> DecodeNetworkAddress(std::string_view bytes) {
  constexpr size_t kPort = sizeof(in_port_t);
  NetworkAddress address;
  if (bytes.size() == sizeof(in_addr) + kPort) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address.address);
    v4.sin_family = AF_INET;
    std::memcpy(&v4.sin_addr, bytes.data(), sizeof v4.sin_addr);
    std::memcpy(&v4.sin_port, bytes.data() + sizeof v4.sin_addr, kPort);
    return address;
  }
  if (bytes.size() == sizeof(in6_addr) + kPort) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.address);
    v6.sin6_family = AF_INET6;
    std::memcpy(&v6.sin6_addr, bytes.data(), sizeof v6.sin6_addr);
    std::memcpy(&v6.sin6_port, bytes.data() + sizeof v6.sin6_addr, kPort);
    return address;
  }
  return std::nullopt;
}

}  // namespace baton
