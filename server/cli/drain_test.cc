// The command against a daemon in this process.
#include "server/cli/drain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "base/field_error.h"
#include "server/edge/daemon.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

class DrainTest : public ::testing::Test {
 protected:
  DrainTest() : flags_("test", "A test.") { Start("127.0.0.1:0"); }
  ~DrainTest() override { End(); }

  void Start(const std::string& listen) {
    daemon_ = std::make_unique<Daemon>(
        DaemonOptions{.listen = listen,
                      .drain_grace = absl::Hours(1),
                      // Whatever this machine's memory is.
                      .memory = {.read = [] { return std::nullopt; }}},
        "test", flags_);
    ASSERT_TRUE(daemon_->StartMetrics({}).ok());
    ASSERT_TRUE(daemon_->Serve({}).ok());
    endpoint_ = "127.0.0.1:" + std::to_string(daemon_->grpc_port());
    runner_ = std::thread([this] { daemon_->Run(); });
  }

  void End() {
    if (!runner_.joinable()) return;
    daemon_->RequestDrain(absl::ZeroDuration(), {});
    runner_.join();
  }

  int Drain(DrainOptions options) {
    options.endpoint = endpoint_;
    options.interval = absl::Milliseconds(10);
    out_.str("");
    err_.str("");
    return RunDrain(options, Console{in_, out_, err_});
  }

  const Flags flags_;
  std::unique_ptr<Daemon> daemon_;
  std::thread runner_;
  std::string endpoint_;
  std::istringstream in_;
  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(DrainTest, AnIdleProcessIsGone) {
  EXPECT_EQ(Drain({}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr(endpoint_ + " is gone after "));
  runner_.join();
  EXPECT_EQ(daemon_->state(), DaemonState::kStopped);
}

TEST_F(DrainTest, WhatStillRunsIsSaidAndAskingAgainWithNoGraceCutsIt) {
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  daemon_->gate().OnCut(this, [this] { daemon_->gate().Leave(this); });
  EXPECT_EQ(Drain({.timeout = absl::Milliseconds(50)}), 1);
  EXPECT_THAT(err_.str(), HasSubstr(endpoint_ + " drains, 1 request left\n"));
  EXPECT_THAT(err_.str(), HasSubstr("still works for 1 request after 50ms"));
  EXPECT_EQ(daemon_->state(), DaemonState::kDraining);
  EXPECT_EQ(Drain({.grace = absl::ZeroDuration()}), 0);
  EXPECT_EQ(daemon_->gate().inside(), 0u);
}

TEST_F(DrainTest, TheEndOfRunningWorkIsAwaited) {
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  std::thread command([this] { EXPECT_EQ(Drain({}), 0); });
  while (daemon_->gate().Enter().ok()) daemon_->gate().Leave();
  daemon_->gate().Leave();
  command.join();
}

TEST_F(DrainTest, NobodyThereIsAFailure) {
  End();
  EXPECT_EQ(Drain({}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("UNAVAILABLE"));
}

TEST_F(DrainTest, ABadTokenFileOrAddressIsNamed) {
  EXPECT_EQ(Drain({.admin_token_file = "/no/such"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("--admin_token_file: /no/such: "));
  EXPECT_EQ(ErrorField(ValidateDrain({.endpoint = "nowhere"})), "address");
  EXPECT_TRUE(ValidateDrain({.endpoint = endpoint_}).ok());
}

TEST_F(DrainTest, AWrongTokenIsRefused) {
  const std::string path = ::testing::TempDir() + "wrong_token";
  std::ofstream(path) << "0123456789abcdef\n";
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(Drain({.admin_token_file = path}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("UNAUTHENTICATED"));
  EXPECT_EQ(daemon_->state(), DaemonState::kServing);
}

}  // namespace
}  // namespace baton
