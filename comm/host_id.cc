#include "comm/host_id.h"

#include <unistd.h>

#include <climits>
#include <fstream>

namespace baton {
namespace {

std::string ReadLink(const char* path) {
  char target[PATH_MAX];
  const ssize_t length = readlink(path, target, sizeof target);
  return length < 0 ? std::string() : std::string(target, length);
}

}  // namespace

std::string ReadHostId() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::string pid = ReadLink("/proc/self/ns/pid");
  const std::string ipc = ReadLink("/proc/self/ns/ipc");
  if (boot.empty() || pid.empty() || ipc.empty()) {
    return "process:" + std::to_string(getpid()) + "/" + boot;
  }
  return boot + "/" + pid + "/" + ipc + "/uid:" + std::to_string(geteuid());
}

}  // namespace baton
