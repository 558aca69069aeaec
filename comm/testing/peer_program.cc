#include "comm/testing/peer_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/logging.h"

namespace baton {

PeerProgram::PeerProgram(std::vector<std::string> arguments) {
  int in[2], out[2];
  CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  input_ = in[1];
  output_ = out[0];
}

PeerProgram::~PeerProgram() {
  close(input_);
  Signal(SIGCONT);
  int status = 0;
  waitpid(pid_, &status, 0);
  EXPECT_TRUE(killed_ || status == 0) << status;
  close(output_);
}

void PeerProgram::Signal(int signal) {
  killed_ |= signal == SIGKILL;
  kill(pid_, signal);
  if (signal == SIGSTOP) waitpid(pid_, nullptr, WUNTRACED);
}

void PeerProgram::WriteLine(std::string line) {
  line += '\n';
  CHECK_EQ(write(input_, line.data(), line.size()),
           static_cast<ssize_t>(line.size()));
}

std::string PeerProgram::ReadLine() {
  std::string line;
  char c = 0;
  while (read(output_, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

bool PeerProgram::HasOutput() const {
  pollfd output = {output_, POLLIN, 0};
  return poll(&output, 1, 0) > 0;
}

}  // namespace baton
