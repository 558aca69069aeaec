#include "server/cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <utility>

#include "absl/strings/str_split.h"

namespace baton {
namespace {

// A child that writes without end of line is cut here.
constexpr size_t kMaxLineBytes = 4096;

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentWithoutOurs() {
  std::vector<std::string> kept;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("BATON_")) kept.push_back(*entry);
  }
  return kept;
}

// Between fork and exec: nothing but system calls.
[[noreturn]] void Exec(char* const* arguments, char* const* environment,
                       int stdout_fd, int log_fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Had the parent died before that call, no signal would come.
  if (getppid() != parent) _exit(127);
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null_fd = open("/dev/null", O_RDONLY);
  dup2(null_fd, STDIN_FILENO);
  dup2(stdout_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  execve(arguments[0], arguments, environment);
  constexpr char kFailed[] = "cannot execute the program\n";
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, kFailed, sizeof(kFailed) - 1);
  _exit(127);
}

}  // namespace

std::optional<Endpoints> ParseEndpointLine(std::string_view line) {
  const std::vector<std::string> words =
      absl::StrSplit(absl::string_view(line.data(), line.size()), ' ');
  if (words.size() != 4 || words[0] != "baton" ||
      !words[2].starts_with("grpc=") || !words[3].starts_with("http=")) {
    return std::nullopt;
  }
  return Endpoints{
      .role = words[1], .grpc = words[2].substr(5), .http = words[3].substr(5)};
}

std::string LastLines(const std::string& path, size_t num_lines) {
  std::ifstream file(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(line + "\n");
    if (lines.size() > num_lines) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += line;
  return text;
}

ChildProcess::ChildProcess(ChildOptions options)
    : options_(std::move(options)) {}

ChildProcess::~ChildProcess() {
  if (running()) {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (stdout_fd_ >= 0) close(stdout_fd_);
}

absl::Status ChildProcess::Start() {
  const std::string& program = options_.arguments[0];
  if (access(program.c_str(), X_OK) != 0) {
    return absl::NotFoundError(program + " is no program: " + strerror(errno));
  }
  const int log_fd = open(options_.log_path.c_str(),
                          O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (log_fd < 0) {
    return absl::InternalError("cannot write the log " + options_.log_path +
                               ": " + strerror(errno));
  }
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
    close(log_fd);
    return absl::InternalError(std::string("pipe: ") + strerror(errno));
  }
  std::vector<std::string> arguments = options_.arguments;
  std::vector<std::string> environment = EnvironmentWithoutOurs();
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(environment);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) Exec(argv.data(), envp.data(), pipe_fds[1], log_fd, parent);
  const int fork_errno = errno;
  close(pipe_fds[1]);
  close(log_fd);
  stdout_fd_ = pipe_fds[0];
  fcntl(stdout_fd_, F_SETFL, O_NONBLOCK);
  if (pid_ < 0) {
    return absl::InternalError(std::string("fork: ") + strerror(fork_errno));
  }
  return absl::OkStatus();
}

void ChildProcess::ReadStdout() {
  char buffer[1024];
  ssize_t count;
  while ((count = read(stdout_fd_, buffer, sizeof(buffer))) > 0) {
    stdout_tail_.append(buffer, count);
    size_t end;
    while ((end = stdout_tail_.find('\n')) != std::string::npos) {
      if (!endpoints_) {
        endpoints_ = ParseEndpointLine(stdout_tail_.substr(0, end));
      }
      stdout_tail_.erase(0, end + 1);
    }
    if (stdout_tail_.size() > kMaxLineBytes) stdout_tail_.clear();
  }
  if (count == 0) {
    close(stdout_fd_);
    stdout_fd_ = -1;
  }
}

void ChildProcess::Signal(int signal) const {
  if (running()) kill(pid_, signal);
}

std::optional<int> ChildProcess::TryWait() {
  int status = 0;
  if (running() && waitpid(pid_, &status, WNOHANG) == pid_) {
    exit_code_ =
        WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return exit_code_;
}

}  // namespace baton
