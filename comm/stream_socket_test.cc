#include "comm/stream_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace baton {
namespace {

constexpr int kDeadlineMs = 30'000;

void WaitFor(const FileDescriptor& socket, int16_t events) {
  pollfd polled = {socket.get(), events, 0};
  EXPECT_EQ(poll(&polled, 1, kDeadlineMs), 1);
}

int Option(const FileDescriptor& socket, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  getsockopt(socket.get(), level, name, &value, &size);
  return value;
}

TEST(StreamSocketTest, ConnectsToWhoListensByAddressAndByName) {
  for (const char* host : {"127.0.0.1", "localhost", "no-such-name.invalid"}) {
    const auto listener = ListenOn({.host = host, .port = 0});
    ASSERT_TRUE(listener.ok()) << listener.status();
    HostPort address = LocalAddress(*listener);
    ASSERT_NE(address.port, 0);
    if (address.host == "::" || address.host == "0.0.0.0") {
      address.host = "127.0.0.1";
    }
    const auto socket = StartConnecting(address, 0);
    ASSERT_TRUE(socket.ok()) << socket.status();
    WaitFor(*socket, POLLOUT);
    EXPECT_TRUE(ConnectResult(*socket).ok());
    WaitFor(*listener, POLLIN);
    EXPECT_TRUE(AcceptFrom(*listener).ok());
    EXPECT_EQ(AcceptFrom(*listener).status().code(),
              absl::StatusCode::kUnavailable);
  }
}

TEST(StreamSocketTest, ANameOfSeveralAddressesHasThemTried) {
  const auto listener = ListenOn({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(listener.ok());
  const uint16_t port = LocalAddress(*listener).port;
  bool connected = false;
  for (uint32_t attempt = 0; attempt < 2; ++attempt) {
    const auto socket =
        StartConnecting({.host = "localhost", .port = port}, attempt);
    if (!socket.ok()) continue;
    WaitFor(*socket, POLLOUT);
    connected |= ConnectResult(*socket).ok();
  }
  EXPECT_TRUE(connected);
}

TEST(StreamSocketTest, WhereNobodyListensTheConnectionFails) {
  const auto socket = StartConnecting({.host = "127.0.0.1", .port = 1}, 0);
  ASSERT_TRUE(socket.ok());
  WaitFor(*socket, POLLOUT);
  EXPECT_EQ(ConnectResult(*socket).code(), absl::StatusCode::kUnavailable);
}

TEST(StreamSocketTest, AnUnknownNameIsNoAddress) {
  const auto socket =
      StartConnecting({.host = "no-such-name.invalid", .port = 1}, 0);
  EXPECT_EQ(socket.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(socket.status().ToString().find("no-such-name.invalid:1"),
            std::string::npos);
}

TEST(StreamSocketTest, APortThatIsTakenOrAnAddressThatIsForeignIsAnError) {
  const auto first = ListenOn({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(ListenOn(LocalAddress(*first)).status().code(),
            absl::StatusCode::kUnavailable);
  // Of the documentation's network; nobody has it.
  EXPECT_EQ(ListenOn({.host = "192.0.2.1", .port = 0}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(StreamSocketTest, ASilentHostIsGoneAfterTheTimeout) {
  const auto listener = ListenOn({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(listener.ok());
  KeepAlive(*listener, absl::Seconds(6));
  EXPECT_EQ(Option(*listener, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(Option(*listener, IPPROTO_TCP, TCP_KEEPIDLE), 3);
  EXPECT_EQ(Option(*listener, IPPROTO_TCP, TCP_KEEPINTVL), 1);
  EXPECT_EQ(Option(*listener, IPPROTO_TCP, TCP_KEEPCNT), 3);
  EXPECT_EQ(Option(*listener, IPPROTO_TCP, TCP_USER_TIMEOUT), 6000);
  EXPECT_EQ(Option(*listener, IPPROTO_TCP, TCP_NODELAY), 1);
  KeepAlive(*listener, absl::Milliseconds(100));
  EXPECT_EQ(Option(*listener, IPPROTO_TCP, TCP_KEEPIDLE), 1);
}

TEST(FileDescriptorTest, IsClosedOnceByItsLastOwner) {
  FileDescriptor first(dup(0));
  const int fd = first.get();
  {
    FileDescriptor second(std::move(first));
    FileDescriptor third;
    third = std::move(second);
    EXPECT_EQ(third.get(), fd);
    EXPECT_NE(fcntl(fd, F_GETFD), -1);
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

}  // namespace
}  // namespace baton
