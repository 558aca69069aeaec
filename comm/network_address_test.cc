#include "comm/network_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>

namespace baton {
namespace {

std::string Text(const NetworkAddress& address) {
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.address);
  return std::string(inet_ntoa(v4.sin_addr)) + ":" +
         std::to_string(ntohs(v4.sin_port));
}

TEST(NetworkAddressTest, LoopbackIsFoundByItsName) {
  NetworkAddress address = FindNetworkAddress("nosuch0,lo").value();
  EXPECT_EQ(address.device, "lo");
  address.set_port(1234);
  EXPECT_EQ(Text(address), "127.0.0.1:1234");
}

TEST(NetworkAddressTest, ADeviceThatIsNotThereIsNamed) {
  const auto address = FindNetworkAddress("nosuch0");
  EXPECT_TRUE(absl::IsNotFound(address.status()));
  EXPECT_NE(std::string(address.status().message()).find("nosuch0"),
            std::string::npos);
}

TEST(NetworkAddressTest, WithoutANameAnyDeviceWillDo) {
  EXPECT_TRUE(FindNetworkAddress("").ok());
}

TEST(NetworkAddressTest, BothFamiliesAreDecodedAsTheyWereEncoded) {
  NetworkAddress v4 = FindNetworkAddress("lo").value();
  v4.set_port(77);
  EXPECT_EQ(EncodeNetworkAddress(v4), std::string("\x7f\0\0\x01\0\x4d", 6));
  EXPECT_EQ(Text(DecodeNetworkAddress(EncodeNetworkAddress(v4)).value()),
            "127.0.0.1:77");

  NetworkAddress v6;
  v6.address.ss_family = AF_INET6;
  reinterpret_cast<sockaddr_in6&>(v6.address).sin6_addr = in6addr_loopback;
  v6.set_port(77);
  const auto decoded = DecodeNetworkAddress(EncodeNetworkAddress(v6));
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->length(), sizeof(sockaddr_in6));
  EXPECT_EQ(std::memcmp(&decoded->address, &v6.address, v6.length()), 0);
}

TEST(NetworkAddressTest, OtherLengthsAreNoAddress) {
  for (size_t size : {0, 5, 7, 17, 19, 28}) {
    EXPECT_FALSE(DecodeNetworkAddress(std::string(size, 'x')).has_value());
  }
}

}  // namespace
}  // namespace baton
