#include "comm/host_id.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace baton {
namespace {

// The host id as a child sees it, after `prepare` in the child.
std::string HostIdOfChild(bool (*prepare)()) {
  int fds[2];
  EXPECT_EQ(pipe(fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string id = prepare() ? ReadHostId() : "failed";
    const bool written =
        write(fds[1], id.data(), id.size()) == static_cast<ssize_t>(id.size());
    _exit(written ? 0 : 1);
  }
  close(fds[1]);
  std::string id(4096, '\0');
  id.resize(read(fds[0], id.data(), id.size()));
  close(fds[0]);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  return id;
}

TEST(HostIdTest, ProcessesOfOneMachineAgree) {
  EXPECT_EQ(HostIdOfChild([] { return true; }), ReadHostId());
}

TEST(HostIdTest, AnotherIpcNamespaceIsAnotherHost) {
  const std::string id =
      HostIdOfChild([] { return unshare(CLONE_NEWUSER | CLONE_NEWIPC) == 0; });
  if (id == "failed") GTEST_SKIP() << "namespaces cannot be made here";
  EXPECT_NE(id, ReadHostId());
}

}  // namespace
}  // namespace baton
