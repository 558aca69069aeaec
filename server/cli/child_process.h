// A server process started by us: its endpoints, its log, its end.
#ifndef BATON_SERVER_CLI_CHILD_PROCESS_H_
#define BATON_SERVER_CLI_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace baton {

// What a server says on stdout once it serves:
//   baton <role> grpc=HOST:PORT http=HOST:PORT
struct Endpoints {
  std::string role;
  std::string grpc;
  std::string http;
};
std::optional<Endpoints> ParseEndpointLine(std::string_view line);

// The last `num_lines` lines of a file; empty if there is none.
std::string LastLines(const std::string& path, size_t num_lines);

struct ChildOptions {
  std::string name;                    // For people: "prefill-0".
  std::vector<std::string> arguments;  // [0] is the program's path.
  std::string log_path;                // Gets its stderr.
};

// The kernel kills the child when the thread that started it ends, however that
// comes. It has no input, a process group of its own (a Ctrl-C at the terminal
// does not reach it) and no BATON_ keys in its environment: its flags say all.
// Thread-compatible.
class ChildProcess {
 public:
  explicit ChildProcess(ChildOptions options);
  // Kills a child that still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  absl::Status Start();

  const std::string& name() const { return options_.name; }
  const std::string& log_path() const { return options_.log_path; }
  pid_t pid() const { return pid_; }
  // Readable when the child has said something; -1 once it has closed it.
  int stdout_fd() const { return stdout_fd_; }
  // Reads what is there, without blocking.
  void ReadStdout();
  // Once the child has told them.
  const std::optional<Endpoints>& endpoints() const { return endpoints_; }

  void Signal(int signal) const;
  // The exit code once it has ended (128 + the signal that killed it), without
  // blocking.
  std::optional<int> TryWait();
  bool running() const { return pid_ > 0 && !exit_code_.has_value(); }

 private:
  const ChildOptions options_;
  pid_t pid_ = -1;
  int stdout_fd_ = -1;
  std::string stdout_tail_;  // The line that has not ended yet.
  std::optional<Endpoints> endpoints_;
  std::optional<int> exit_code_;
};

}  // namespace baton

#endif  // BATON_SERVER_CLI_CHILD_PROCESS_H_
