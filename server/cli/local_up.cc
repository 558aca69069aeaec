#include "server/cli/local_up.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/cli/child_process.h"
#include "server/cli/local_group.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLogLinesShown = 20;
constexpr absl::Duration kProgressInterval = absl::Seconds(1);

// --bin_dir, or beside this program, or where Bazel builds the others.
absl::StatusOr<std::string> FindProgram(const std::string& name,
                                        const std::string& bin_dir) {
  std::vector<fs::path> folders = {bin_dir};
  if (bin_dir.empty()) {
    const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
    folders = {here, here / "..", here / "../router"};
  }
  for (const fs::path& folder : folders) {
    const fs::path path = (folder / name).lexically_normal();
    if (access(path.c_str(), X_OK) == 0 && !fs::is_directory(path)) {
      return path.string();
    }
  }
  return absl::NotFoundError(
      name + " is not in " + folders.front().string() +
      "; build it (bazel build //server/...), or say --bin_dir");
}

// The processes of one run, in the order of their start. Owned by the main
// thread, which is the only one.
class LocalCluster {
 public:
  LocalCluster(const LocalUpOptions& options, const Console& console)
      : options_(options), console_(console) {}
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  // OK: all serve.
  absl::Status Start();
  // What to exit with. REQUIRES: Start was OK.
  int RunUntilTheEnd();
  // The last server started ends first.
  void StopAll();
  // Of the child that ended by itself.
  std::optional<int> failed_exit_code() const { return failed_exit_code_; }
  bool interrupted() const { return interrupted_; }

 private:
  absl::Status CheckReadyFile() const;
  absl::Status Prepare();
  absl::Status StartWorkers(const std::string& program);
  struct Pool {
    std::string role;
    uint32_t count = 0;
    uint32_t ep_size = 1;
    uint32_t num_processes = 1;  // Of each worker.
  };
  absl::Status StartPool(const std::string& program, const Pool& pool);
  absl::Status StartWorker(const std::string& program, const Pool& pool,
                           const std::string& name);
  absl::Status StartRouter(const std::string& program);
  absl::Status Launch(std::string name, std::vector<std::string> arguments);
  absl::Status AwaitEndpoints();
  // The endpoints of the workers whose role is `role`, with commas.
  std::string WorkerList(const std::string& role) const;
  // Of all workers. REQUIRES: the router, too, was started.
  std::string AllWorkers() const;
  // Waits for a signal or a word of a child, at most `timeout`, and takes note.
  void AwaitEvent(absl::Duration timeout);
  void AwaitEnd(ChildProcess& child, absl::Time deadline);
  // False once a child has ended by itself; says which, and why.
  bool AllRun();
  void AnnounceReady() const;
  absl::Status WriteReadyFile();

  const LocalUpOptions& options_;
  const Console& console_;
  const MonotonicClock clock_;
  const absl::Time start_ = clock_.Now();
  int signal_fd_ = -1;
  std::string log_dir_;
  std::vector<std::unique_ptr<ReservedPort>> leader_ports_;
  std::vector<std::unique_ptr<ChildProcess>> children_;
  std::vector<size_t> servers_;  // Of each worker and the router, first child.
  bool interrupted_ = false;
  bool is_ready_ = false;  // And a file says so.
  std::optional<int> failed_exit_code_;
};

LocalCluster::~LocalCluster() {
  if (signal_fd_ >= 0) close(signal_fd_);
  std::error_code ignored;
  if (options_.log_dir.empty() && !log_dir_.empty()) {
    fs::remove_all(log_dir_, ignored);
  }
  if (is_ready_) fs::remove(options_.ready_file, ignored);
}

// Before anything starts; it is written when all has.
absl::Status LocalCluster::CheckReadyFile() const {
  if (options_.ready_file.empty()) return absl::OkStatus();
  const fs::path path = fs::absolute(options_.ready_file);
  if (fs::is_directory(path)) {
    return FieldError("ready_file", path.string() + " is a folder");
  }
  if (!fs::is_directory(path.parent_path())) {
    return FieldError("ready_file",
                      "there is no folder " + path.parent_path().string());
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::Prepare() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) {
    sigaddset(&signals, signal);
  }
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  RETURN_IF_ERROR(CheckReadyFile());
  std::error_code error;
  if (options_.log_dir.empty()) {
    std::string name = (fs::temp_directory_path() / "baton-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      return absl::InternalError("cannot make " + name + " for the logs: " +
                                 strerror(errno) + "; say --log_dir");
    }
    log_dir_ = name;
  } else {
    log_dir_ = options_.log_dir;
    fs::create_directories(log_dir_, error);
    if (error) return FieldError("log_dir", error.message());
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::Launch(std::string name,
                                  std::vector<std::string> arguments) {
  const std::string log = log_dir_ + "/" + name + ".log";
  children_.push_back(std::make_unique<ChildProcess>(
      ChildOptions{.name = std::move(name),
                   .arguments = std::move(arguments),
                   .log_path = log}));
  return children_.back()->Start();
}

absl::Status LocalCluster::StartWorkers(const std::string& program) {
  std::vector<Pool> pools = {{"prefill", options_.prefill.value_or(1),
                              options_.prefill_ep, options_.prefill_processes},
                             {"decode", options_.decode.value_or(1),
                              options_.decode_ep, options_.decode_processes}};
  if (options_.unified) {
    pools = {{"unified", 1, options_.unified_ep, options_.unified_processes}};
  }
  for (const Pool& pool : pools) {
    RETURN_IF_ERROR(StartPool(program, pool));
  }
  return AwaitEndpoints();
}

absl::Status LocalCluster::StartPool(const std::string& program,
                                     const Pool& pool) {
  for (uint32_t i = 0; i < pool.count; ++i) {
    RETURN_IF_ERROR(
        StartWorker(program, pool, pool.role + "-" + std::to_string(i)));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::StartWorker(const std::string& program,
                                       const Pool& pool,
                                       const std::string& name) {
  LocalGroup group = {.ep_size = pool.ep_size,
                      .num_processes = pool.num_processes};
  if (group.num_processes > 1) {
    ASSIGN_OR_RETURN(std::unique_ptr<ReservedPort> port, ReservedPort::Find());
    group.leader = port->endpoint();
    leader_ports_.push_back(std::move(port));
  }
  servers_.push_back(children_.size());
  for (uint32_t process = 0; process < group.num_processes; ++process) {
    std::vector<std::string> arguments = {
        program, "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
        "--role=" + pool.role, "--model=" + options_.model};
    const std::vector<std::string> group_flags = GroupFlagsOf(group, process);
    arguments.insert(arguments.end(), group_flags.begin(), group_flags.end());
    arguments.insert(arguments.end(), options_.worker_flags.begin(),
                     options_.worker_flags.end());
    RETURN_IF_ERROR(Launch(
        group.num_processes == 1 ? name : absl::StrCat(name, ".", process),
        std::move(arguments)));
  }
  return absl::OkStatus();
}

std::string LocalCluster::WorkerList(const std::string& role) const {
  std::vector<std::string> endpoints;
  for (const auto& child : children_) {
    if (child->endpoints()->role == role) {
      endpoints.push_back(child->endpoints()->grpc);
    }
  }
  return absl::StrJoin(endpoints, ",");
}

std::string LocalCluster::AllWorkers() const {
  std::vector<std::string> endpoints;
  for (const auto& child : children_) {
    if (child != children_.back()) {
      endpoints.push_back(child->endpoints()->grpc);
    }
  }
  return absl::StrJoin(endpoints, ",");
}

absl::Status LocalCluster::StartRouter(const std::string& program) {
  std::vector<std::string> arguments = {
      program, "--listen=" + options_.router_listen,
      "--metrics_listen=127.0.0.1:0", "--model=" + options_.model};
  for (const std::string role : {"prefill", "decode", "unified"}) {
    const std::string workers = WorkerList(role);
    if (!workers.empty()) {
      arguments.push_back("--" + role + "=" + workers);
    }
  }
  arguments.insert(arguments.end(), options_.router_flags.begin(),
                   options_.router_flags.end());
  servers_.push_back(children_.size());
  RETURN_IF_ERROR(Launch("router", std::move(arguments)));
  return AwaitEndpoints();
}

absl::Status LocalCluster::AwaitEndpoints() {
  const absl::Time deadline = clock_.Now() + options_.start_timeout;
  absl::Time next_word = clock_.Now() + kProgressInterval;
  while (true) {
    std::vector<std::string> waiting;
    for (const auto& child : children_) {
      if (!child->endpoints()) waiting.push_back(child->name());
    }
    if (waiting.empty()) return absl::OkStatus();
    if (!AllRun() || interrupted_) {
      return absl::CancelledError("ended before it was ready");
    }
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrJoin(waiting, ", ") +
          " did not start in time; look at its log, or raise "
          "--start_timeout:\n" +
          LastLines(log_dir_ + "/" + waiting.front() + ".log", kLogLinesShown));
    }
    if (clock_.Now() >= next_word) {
      console_.err << absl::StrFormat(
                          "waiting for %s, %.0f s",
                          absl::StrJoin(waiting, ", "),
                          absl::ToDoubleSeconds(clock_.Now() - start_))
                   << std::endl;
      next_word += kProgressInterval;
    }
    AwaitEvent(std::min(next_word, deadline) - clock_.Now());
  }
}

void LocalCluster::AwaitEvent(absl::Duration timeout) {
  std::vector<pollfd> fds = {
      {.fd = signal_fd_, .events = POLLIN, .revents = 0}};
  for (const auto& child : children_) {
    fds.push_back({.fd = child->stdout_fd(), .events = POLLIN, .revents = 0});
  }
  // Rounded up, so that a wait never turns into a spin.
  const auto milliseconds = std::max<int64_t>(
      0, absl::ToInt64Milliseconds(timeout + absl::Milliseconds(1)));
  poll(fds.data(), fds.size(), static_cast<int>(milliseconds));
  for (size_t i = 0; i < children_.size(); ++i) {
    if (fds[i + 1].revents != 0) children_[i]->ReadStdout();
  }
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) interrupted_ = true;
  }
}

bool LocalCluster::AllRun() {
  for (const auto& child : children_) {
    const std::optional<int> code = child->TryWait();
    if (!code || failed_exit_code_) continue;
    failed_exit_code_ = *code == 0 ? kExitFailed : *code;
    console_.err << child->name() << " (pid " << child->pid()
                 << ") ended with exit code " << *code
                 << "; its last log lines:\n"
                 << LastLines(child->log_path(), kLogLinesShown) << std::flush;
  }
  return !failed_exit_code_;
}

absl::Status LocalCluster::Start() {
  ASSIGN_OR_RETURN(const std::string batond,
                   FindProgram("batond", options_.bin_dir));
  ASSIGN_OR_RETURN(const std::string router,
                   FindProgram("baton-router", options_.bin_dir));
  RETURN_IF_ERROR(Prepare());
  RETURN_IF_ERROR(StartWorkers(batond));
  RETURN_IF_ERROR(StartRouter(router));
  AnnounceReady();
  return options_.ready_file.empty() ? absl::OkStatus() : WriteReadyFile();
}

void LocalCluster::AnnounceReady() const {
  for (const auto& child : children_) {
    const Endpoints& endpoints = *child->endpoints();
    console_.out << absl::StrFormat("%-11s pid %-7d grpc %-21s http %s\n",
                                    child->name(), child->pid(), endpoints.grpc,
                                    endpoints.http);
  }
  console_.out << absl::StrFormat(
      "ready after %.2f s; ask with: baton generate --router=%s --prompt=...\n",
      absl::ToDoubleSeconds(clock_.Now() - start_),
      children_.back()->endpoints()->grpc);
  console_.out << "watch with: baton top --workers=" << AllWorkers() << "\n";
  console_.out << "Ctrl-C ends all" << std::endl;
}

absl::Status LocalCluster::WriteReadyFile() {
  nlohmann::json json;
  json["router"] = children_.back()->endpoints()->grpc;
  json["workers"] = AllWorkers();
  for (const auto& child : children_) {
    json["processes"].push_back({{"name", child->name()},
                                 {"role", child->endpoints()->role},
                                 {"pid", child->pid()},
                                 {"grpc", child->endpoints()->grpc},
                                 {"http", child->endpoints()->http},
                                 {"log", child->log_path()}});
  }
  // Under its name only when it is whole.
  const std::string partial = options_.ready_file + ".partial";
  std::ofstream(partial) << json.dump() << "\n";
  std::error_code error;
  fs::rename(partial, options_.ready_file, error);
  is_ready_ = !error;
  if (is_ready_) return absl::OkStatus();
  std::error_code ignored;
  fs::remove(partial, ignored);
  return FieldError("ready_file", "cannot write " + options_.ready_file + ": " +
                                      error.message());
}

int LocalCluster::RunUntilTheEnd() {
  while (AllRun() && !interrupted_) AwaitEvent(absl::Hours(1));
  return failed_exit_code_.value_or(kExitOk);
}

void LocalCluster::StopAll() {
  interrupted_ = false;
  for (; !servers_.empty(); servers_.pop_back()) {
    // The processes of a group drain together.
    for (size_t i = servers_.back(); i < children_.size(); ++i) {
      children_[i]->Signal(SIGTERM);
    }
    const absl::Time deadline = clock_.Now() + options_.grace;
    for (; children_.size() > servers_.back(); children_.pop_back()) {
      AwaitEnd(*children_.back(), deadline);
    }
  }
}

void LocalCluster::AwaitEnd(ChildProcess& child, absl::Time deadline) {
  // A second Ctrl-C cuts the grace.
  while (!child.TryWait() && child.running() && clock_.Now() < deadline &&
         !interrupted_) {
    AwaitEvent(deadline - clock_.Now());
  }
  if (child.running()) {
    console_.err << child.name() << " did not end by itself"
                 << (interrupted_ ? " before a second signal" : "")
                 << ": killed\n";
  }
}

}  // namespace

int RunLocalUp(const LocalUpOptions& options, const Console& console) {
  LocalCluster cluster(options, console);
  int exit_code = kExitFailed;
  if (const absl::Status started = cluster.Start(); started.ok()) {
    exit_code = cluster.RunUntilTheEnd();
  } else if (cluster.failed_exit_code()) {
    exit_code = *cluster.failed_exit_code();
  } else if (cluster.interrupted()) {
    exit_code = kExitOk;
  } else {
    console.err << "baton local up: " << std::string(started.message()) << "\n";
  }
  cluster.StopAll();
  return exit_code;
}

}  // namespace baton
