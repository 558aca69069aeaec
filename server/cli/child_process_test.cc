#include "server/cli/child_process.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

std::string LogPath(const std::string& name) {
  return ::testing::TempDir() + name + ".log";
}

ChildOptions Shell(const std::string& name, const std::string& script) {
  return {.name = name,
          .arguments = {"/bin/sh", "-c", script},
          .log_path = LogPath(name)};
}

// Until the child has closed its output.
void ReadToTheEnd(ChildProcess& child) {
  while (child.stdout_fd() >= 0) {
    pollfd fd = {.fd = child.stdout_fd(), .events = POLLIN, .revents = 0};
    poll(&fd, 1, 10'000);
    child.ReadStdout();
  }
}

int AwaitExit(ChildProcess& child) {
  siginfo_t info;
  waitid(P_PID, child.pid(), &info, WEXITED | WNOWAIT);
  return child.TryWait().value_or(-1);
}

TEST(ChildProcessTest, ReadsTheEndpointLineAndNothingElse) {
  const auto endpoints =
      ParseEndpointLine("baton decode grpc=127.0.0.1:1 http=127.0.0.1:2");
  ASSERT_TRUE(endpoints.has_value());
  EXPECT_EQ(endpoints->role, "decode");
  EXPECT_EQ(endpoints->grpc, "127.0.0.1:1");
  EXPECT_EQ(endpoints->http, "127.0.0.1:2");
  for (const char* line :
       {"", "baton", "baton decode grpc=a", "baton decode http=a grpc=b",
        "other decode grpc=a http=b", "baton decode grpc=a http=b more"}) {
    EXPECT_FALSE(ParseEndpointLine(line).has_value()) << line;
  }
}

TEST(ChildProcessTest, TellsEndpointsLogAndExitCode) {
  ChildProcess child(Shell(
      "tells",
      "echo hello; echo baton x grpc=h:1 http=h:2; echo oops >&2; exit 7"));
  ASSERT_TRUE(child.Start().ok());
  ReadToTheEnd(child);
  ASSERT_TRUE(child.endpoints().has_value());
  EXPECT_EQ(child.endpoints()->grpc, "h:1");
  EXPECT_EQ(AwaitExit(child), 7);
  EXPECT_FALSE(child.running());
  EXPECT_EQ(LastLines(child.log_path(), 5), "oops\n");
}

TEST(ChildProcessTest, ASignalsNumberIsInTheExitCode) {
  ChildProcess child(Shell("signalled", "exec tail -f /dev/null"));
  ASSERT_TRUE(child.Start().ok());
  EXPECT_FALSE(child.TryWait().has_value());
  child.Signal(SIGTERM);
  EXPECT_EQ(AwaitExit(child), 128 + SIGTERM);
}

TEST(ChildProcessTest, OurKeysAreNotInTheChildsEnvironment) {
  setenv("BATON_MODEL", "ours", 1);
  setenv("OTHER_KEY", "theirs", 1);
  ChildProcess child(Shell("environment",
                           "echo baton \"[$BATON_MODEL$OTHER_KEY]\" grpc=a "
                           "http=b"));
  ASSERT_TRUE(child.Start().ok());
  ReadToTheEnd(child);
  ASSERT_TRUE(child.endpoints().has_value());
  EXPECT_EQ(child.endpoints()->role, "[theirs]");
  AwaitExit(child);
}

TEST(ChildProcessTest, TheDestructorLeavesNoProcess) {
  pid_t pid = 0;
  {
    ChildProcess child(Shell("destroyed", "exec tail -f /dev/null"));
    ASSERT_TRUE(child.Start().ok());
    pid = child.pid();
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(ChildProcessTest, AMissingProgramIsNamed) {
  ChildProcess child({.name = "none",
                      .arguments = {"/usr/bin/no-such-program"},
                      .log_path = LogPath("none")});
  const absl::Status status = child.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no-such-program"));
  EXPECT_FALSE(child.running());
}

TEST(ChildProcessTest, LastLinesAreTheLastOnes) {
  std::ofstream(LogPath("lines")) << "a\nb\nc\n";
  EXPECT_EQ(LastLines(LogPath("lines"), 2), "b\nc\n");
  EXPECT_EQ(LastLines(LogPath("lines"), 9), "a\nb\nc\n");
  EXPECT_EQ(LastLines(LogPath("no-lines"), 9), "");
}

}  // namespace
}  // namespace baton
