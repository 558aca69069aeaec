#include "bench/host_members.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/logging.h"

namespace baton {
namespace {

void RunThreads(int num, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < num; ++i) threads.emplace_back([&, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

void RunProcesses(int num, const std::function<void(int)>& body) {
  std::vector<pid_t> children;
  for (int i = 0; i < num; ++i) {
    const pid_t child = fork();
    CHECK_GE(child, 0);
    if (child == 0) {
      body(i);
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
  }
}

}  // namespace

void* MapShared(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  CHECK(memory != MAP_FAILED);
  return memory;
}

void UnmapShared(void* memory, size_t bytes) { munmap(memory, bytes); }

void RunMembers(MemberKind kind, int num,
                const std::function<void(int)>& body) {
  kind == MemberKind::kThread ? RunThreads(num, body) : RunProcesses(num, body);
}

}  // namespace baton
