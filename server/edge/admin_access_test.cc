#include "server/edge/admin_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kToken[] = "0123456789abcdef";

TEST(AdminAccessTest, LoopbackAndUnixSocketsAreThisHost) {
  for (const char* peer :
       {"ipv4:127.0.0.1:50051", "ipv4:127.255.1.2:1", "ipv6:[::1]:50051",
        "ipv6:%5B::1%5D:50051", "ipv6:[::ffff:127.0.0.1]:1",
        "unix:/run/baton.sock", "unix:", "unix-abstract:baton"}) {
    EXPECT_TRUE(IsLoopbackPeer(peer)) << peer;
  }
  for (const char* peer :
       {"", "ipv4", "ipv4:", "ipv4:10.0.0.1:50051", "ipv4:128.0.0.1:1",
        "ipv4:127.0.0.1.evil.example:1", "ipv4:localhost:1", "ipv4:127.1:1",
        "ipv6:[::2]:1", "ipv6:[fe80::1%25lo]:1", "ipv6:[::ffff:10.0.0.1]:1",
        "ipv6:::1:1", "ipv6:[", "127.0.0.1:50051", "dns:localhost:1",
        "vsock:1:1"}) {
    EXPECT_FALSE(IsLoopbackPeer(peer)) << peer;
  }
}

class TokenFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_) << text;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }

  absl::StatusCode Check(const std::string& peer,
                         std::optional<std::string> authorization,
                         const std::string& token_file) {
    return CheckAdminCall(
               {.peer = peer, .authorization = std::move(authorization)},
               token_file)
        .code();
  }

  const std::string path_ = ::testing::TempDir() + "token";
};

TEST_F(TokenFileTest, HoldsOneLineOfSixteenOrMoreVisibleCharacters) {
  for (const std::string& good :
       {std::string(kToken), kToken + std::string("\n"),
        std::string(4096, 'x') + "\n"}) {
    Write(good);
    const auto token = ReadAdminToken(path_);
    ASSERT_TRUE(token.ok()) << token.status();
    EXPECT_EQ(*token + "\n", good.back() == '\n' ? good : good + "\n");
  }
  for (const std::string& bad :
       {std::string(), std::string(15, 'x'), std::string(15, 'x') + "\n",
        std::string(4097, 'x'), std::string(8, 'x') + "\n" + kToken,
        kToken + std::string(" "), kToken + std::string(1, '\0'),
        kToken + std::string("\xff"), kToken + std::string("\r\n")}) {
    Write(bad);
    const auto token = ReadAdminToken(path_);
    ASSERT_FALSE(token.ok()) << bad;
    EXPECT_THAT(std::string(token.status().message()), HasSubstr(path_));
    EXPECT_THAT(std::string(token.status().message()), Not(HasSubstr("xxx")));
  }
}

TEST_F(TokenFileTest, OpenToEverybodyAbsentOrNoFileIsRefused) {
  for (const mode_t mode : {0604, 0602, 0644, 0666}) {
    Write(kToken, mode);
    EXPECT_FALSE(ReadAdminToken(path_).ok()) << mode;
  }
  Write(kToken, 0440);
  EXPECT_TRUE(ReadAdminToken(path_).ok());
  EXPECT_FALSE(ReadAdminToken(path_ + "no").ok());
  EXPECT_FALSE(ReadAdminToken(::testing::TempDir()).ok());
}

TEST_F(TokenFileTest, EveryCallerIsAllowedOrHearsWhy) {
  using enum absl::StatusCode;
  Write(kToken);
  const std::string here = "ipv4:127.0.0.1:1";
  const std::string there = "ipv4:10.0.0.1:1";
  const std::string right = std::string("Bearer ") + kToken;
  EXPECT_EQ(Check(here, {}, ""), kOk);
  EXPECT_EQ(Check(here, {}, path_), kOk);
  EXPECT_EQ(Check(there, {}, ""), kPermissionDenied);
  EXPECT_EQ(Check(there, {}, path_), kUnauthenticated);
  EXPECT_EQ(Check(here, right, path_), kOk);
  EXPECT_EQ(Check(there, right, path_), kOk);
  EXPECT_EQ(Check(there, right, ""), kUnauthenticated);
  for (const std::string& wrong :
       {std::string(), std::string("Bearer "), std::string(kToken),
        std::string("bearer ") + kToken, right + "0", right + kToken,
        right.substr(0, right.size() - 1),
        std::string("Bearer 0123456789abcdeF")}) {
    for (const std::string& peer : {here, there}) {
      EXPECT_EQ(Check(peer, wrong, path_), kUnauthenticated) << wrong;
    }
  }
}

TEST_F(TokenFileTest, ANewTokenCountsAtOnceAndALostOneAdmitsNobody) {
  using enum absl::StatusCode;
  const std::string there = "ipv4:10.0.0.1:1";
  Write(kToken);
  const std::string first = std::string("Bearer ") + kToken;
  EXPECT_EQ(Check(there, first, path_), kOk);
  Write("another-token-of-ours");
  EXPECT_EQ(Check(there, first, path_), kUnauthenticated);
  EXPECT_EQ(Check(there, "Bearer another-token-of-ours", path_), kOk);
  Write("another-token-of-ours", 0644);
  EXPECT_EQ(Check(there, "Bearer another-token-of-ours", path_),
            kUnauthenticated);
}

}  // namespace
}  // namespace baton
