#include "tests/simulation/command_on_death.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>

#include "base/logging.h"

// In binaries with a sanitizer alone.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(  // NOLINT
    void (*callback)());

namespace baton {
namespace {

// A signal handler has no other way to its data.
std::array<char, 201> line = {};
size_t line_size = 0;

int true_stderr = -1;  // While it is held.
int held = -1;

// Out with what was kept aside.
void LetGo() {
  if (held < 0) return;
  dup2(true_stderr, STDERR_FILENO);
  lseek(held, 0, SEEK_SET);
  std::array<char, 4096> piece;
  ssize_t size = 0;
  while ((size = read(held, piece.data(), piece.size())) > 0) {
    if (write(STDERR_FILENO, piece.data(), static_cast<size_t>(size)) < 0) {
      return;
    }
  }
}

void WriteLine() {
  LetGo();
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), line_size);
}

void OnSignal(int signal) {
  WriteLine();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void Install() {
  std::signal(SIGABRT, OnSignal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(WriteLine);
    return;
  }
  std::signal(SIGSEGV, OnSignal);
  std::signal(SIGFPE, OnSignal);
}

}  // namespace

void PrintOnDeath(std::string_view command) {
  line_size = std::min(command.size(), line.size() - 1);
  std::copy_n(command.begin(), line_size, line.begin());
  line[line_size++] = '\n';
  static const bool installed = (Install(), true);
  static_cast<void>(installed);
}

HeldStderr::HeldStderr() {
  CHECK_LT(held, 0) << "stderr is held already";
  true_stderr = dup(STDERR_FILENO);
  held = memfd_create("stderr", 0);
  CHECK(true_stderr >= 0 && held >= 0);
  dup2(held, STDERR_FILENO);
}

HeldStderr::~HeldStderr() {
  dup2(true_stderr, STDERR_FILENO);
  close(held);
  close(true_stderr);
  held = -1;
}

}  // namespace baton
