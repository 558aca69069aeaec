#include "tests/simulation/command_on_death.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>

// In binaries with a sanitizer alone.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(  // NOLINT
    void (*callback)());

namespace baton {
namespace {

// A signal handler has no other way to its data.
std::array<char, 201> line = {};
size_t line_size = 0;

void WriteLine() {
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

}  // namespace baton
