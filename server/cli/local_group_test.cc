#include "server/cli/local_group.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

namespace baton {
namespace {

using Flags = std::vector<std::string>;

TEST(LocalGroupTest, ARankAloneIsToldNothing) {
  EXPECT_EQ(GroupFlagsOf({}, 0), Flags());
}

TEST(LocalGroupTest, OneProcessIsToldTheSize) {
  EXPECT_EQ(GroupFlagsOf({.ep_size = 64}, 0), Flags{"--ep_size=64"});
}

TEST(LocalGroupTest, EachOfSeveralProcessesHasItsShareAndKnowsTheLeader) {
  const LocalGroup group = {
      .ep_size = 6, .num_processes = 3, .leader = "127.0.0.1:7"};
  for (uint32_t process = 0; process < 3; ++process) {
    EXPECT_EQ(GroupFlagsOf(group, process),
              (Flags{"--ep_size=6", "--local_ranks=2",
                     "--rank_offset=" + std::to_string(2 * process),
                     "--leader=127.0.0.1:7"}));
  }
}

// Whether a server can listen there.
bool CanListen(const std::string& endpoint) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(
      std::atoi(endpoint.substr(endpoint.find(':') + 1).c_str())));
  const bool can =
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      listen(fd, 1) == 0;
  close(fd);
  return can;
}

TEST(LocalGroupTest, AReservedPortIsOneOfItsOwnAndFreeForAListener) {
  const auto one = ReservedPort::Find();
  const auto other = ReservedPort::Find();
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ((*one)->endpoint().find("127.0.0.1:"), 0u);
  EXPECT_NE((*one)->endpoint(), (*other)->endpoint());
  EXPECT_TRUE(CanListen((*one)->endpoint()));
  EXPECT_TRUE(CanListen((*other)->endpoint()));
}

}  // namespace
}  // namespace baton
