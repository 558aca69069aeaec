#include "server/edge/daemon.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include "base/fault_point.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "server/edge/admin_access.h"
#include "server/edge/grpc_limits.h"
#include "server/edge/health.h"
#include "server/edge/version.h"

namespace baton {
namespace {

// What the drain cuts gets this long to end: a step, and its last message.
constexpr absl::Duration kCutGrace = absl::Seconds(1);
// What is left after it gets this long to hear that it was cancelled.
constexpr std::chrono::milliseconds kCancelGrace(200);
// Between two looks at least, and at most while memory is short.
constexpr absl::Duration kShortLook = absl::Milliseconds(250);

// Where the handler reports to: a signal handler has no other way to know.
// Negative while nothing is served.
std::atomic<int> handler_fd{-1};

void OnSignal(int) {
  const int fd = handler_fd.load(std::memory_order_relaxed);
  if (fd < 0) _exit(0);
  const int saved_errno = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof(one));
  errno = saved_errno;
}

void Handle(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

// A parent may have left them blocked.
void Unblock() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

// Takes one from an eventfd; false if there was none.
bool Take(int fd) {
  uint64_t count = 0;
  return read(fd, &count, sizeof(count)) == sizeof(count);
}

int NewEventFd(int flags) {
  const int fd = eventfd(0, flags | EFD_CLOEXEC | EFD_NONBLOCK);
  CHECK_GE(fd, 0) << "eventfd errno " << errno;
  return fd;
}

std::string WithPort(const std::string& address, int port) {
  return address.substr(0, address.rfind(':') + 1) + std::to_string(port);
}

}  // namespace

void AddDaemonFlags(Flags* flags, DaemonOptions* options) {
  flags->Group("Process");
  flags->AddAddress(
      &options->listen,
      {.name = "listen",
       .help = "Address of the gRPC service, host:port. Port 0 takes "
               "any free one, which stdout tells."});
  flags->AddAddress(
      &options->metrics_listen,
      {.name = "metrics_listen",
       .help = "Address of /metrics, /healthz and /readyz, host:port."});
  flags->Add(&options->drain_grace,
             {.name = "drain_grace",
              .help = "How long running requests may go on after SIGTERM "
                      "or baton drain.",
              .min = 0,
              .max = 86400});
  flags->Add(&options->admin_token_file,
             {.name = "admin_token_file",
              .help = "A file with the token of operators, who may drain the "
                      "process from other hosts; 16 characters or more, and "
                      "not open to everybody on the host. Absent: only from "
                      "this host."});
  const auto add_ratio = [flags](double* ratio, const char* name,
                                 const char* help) {
    flags->Add(ratio, {.name = name, .help = help, .min = 0, .max = 1});
  };
  add_ratio(&options->memory.refuse_ratio, "memory_refuse_ratio",
            "New requests are RESOURCE_EXHAUSTED that may take more than is "
            "left below this part of the memory limit: a cgroup's, or one on "
            "the address space, else the machine's memory. 0: never.");
  add_ratio(
      &options->memory.shed_ratio, "memory_shed_ratio",
      "While more than this part of the memory limit is taken, the youngest "
      "half of the requests that wait, never those that run, is "
      "RESOURCE_EXHAUSTED each second. 0: never; else not below "
      "memory_refuse_ratio.");
  flags->Add(&options->verbosity, {.name = "verbosity",
                                   .help = "1 logs state transitions, 2 more.",
                                   .max = 9});
}

namespace {

// To what the system allows: gRPC accepts nobody any more once it has run out.
void RaiseDescriptorLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

absl::Status ValidateDaemonOptions(const DaemonOptions& options) {
  // 0 turns either off.
  if (options.memory.shed_ratio > 0 &&
      options.memory.refuse_ratio > options.memory.shed_ratio) {
    return FieldError("memory_refuse_ratio",
                      "is above memory_shed_ratio: waiting requests would be "
                      "sent away while new ones are taken");
  }
  if (options.admin_token_file.empty()) return absl::OkStatus();
  const auto token = ReadAdminToken(options.admin_token_file);
  return token.ok() ? absl::OkStatus()
                    : FieldError("admin_token_file",
                                 std::string(token.status().message()));
}

Daemon::Daemon(DaemonOptions options, std::string role, const Flags& flags)
    : options_(std::move(options)),
      role_(std::move(role)),
      signal_fd_(NewEventFd(EFD_SEMAPHORE)),
      wake_fd_(NewEventFd(0)),
      gate_([this] { Wake(); }),
      memory_guard_(options_.memory, &gate_, &registry_, role_) {
  memory_guard_.OnHaste([this] {
    look_now_.store(true);
    Wake();
  });
  SetVlogLevel(static_cast<int>(options_.verbosity));
  // Debian's Abseil checks the order of all locks, gRPC's too, on every lock:
  // for tests, where nothing turns it off.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  Handle(&OnSignal);
  Unblock();
  RaiseDescriptorLimit();
  LOG(INFO) << "start role " << role_ << " version " << kBatonVersion << ' '
            << flags.InForce();
}

Daemon::~Daemon() {
  const int fd = handler_fd.load();
  if (fd == signal_fd_ || fd < 0) {  // Else another one serves.
    Handle(SIG_DFL);
    handler_fd.store(-1);
  }
  close(signal_fd_);
  close(wake_fd_);
}

absl::Status Daemon::StartMetrics(std::function<void()> before_scrape) {
  auto server = MetricsServer::Start({.address = options_.metrics_listen,
                                      .registry = &registry_,
                                      .before_scrape = std::move(before_scrape),
                                      .ready = [this] { return IsReady(); },
                                      .live = [this] { return IsLive(); }});
  if (!server.ok()) {
    return FieldError("metrics_listen", std::string(server.status().message()));
  }
  metrics_server_ = *std::move(server);
  return absl::OkStatus();
}

absl::Status Daemon::Serve(const std::vector<ServedService>& services) {
  EnableHealthAndReflection();
  grpc::ServerBuilder builder;
  // A port has one process: without this two may share it silently.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  SetGrpcLimits(&builder);
  builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(),
                           &grpc_port_);
  for (const ServedService& served : services) {
    builder.RegisterService(served.service);
    service_names_.push_back(served.name);
  }
  admin_ = std::make_unique<AdminService>(
      AdminOptions{.token_file = options_.admin_token_file,
                   .drain = [this](std::optional<absl::Duration> grace,
                                   AdminOptions::Begun begun) {
                     RequestDrain(grace, std::move(begun));
                   }});
  builder.RegisterService(admin_.get());
  service_names_.push_back(v1::AdminService::service_full_name());
  handler_fd.store(signal_fd_);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || grpc_port_ == 0) {
    SetState(DaemonState::kStopped);
    StopMetrics();  // What before_scrape looks at may go before the daemon.
    return FieldError("listen", "cannot listen on " + options_.listen +
                                    ": no address of this host, or taken by "
                                    "another process; port 0 takes a free one");
  }
  SetState(DaemonState::kServing);
  const std::string grpc_address = WithPort(options_.listen, grpc_port_);
  const std::string http_address =
      WithPort(options_.metrics_listen, metrics_port());
  LOG(INFO) << "listening role " << role_ << " grpc " << grpc_address
            << " http " << http_address;
  std::printf("baton %s grpc=%s http=%s\n", role_.c_str(), grpc_address.c_str(),
              http_address.c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

int Daemon::Run() {
  while (!stop_requested_.load()) {
    if (Await(absl::InfiniteFuture()) != Event::kSignal) continue;
    ++num_signals_;
    break;
  }
  Drain();
  const auto start = absl::Now();
  server_->Shutdown(std::chrono::system_clock::now() + kCancelGrace);
  server_->Wait();
  metrics_server_.reset();
  SetState(DaemonState::kStopped);
  LOG(INFO) << "stop role " << role_ << " shutdown "
            << absl::FormatDuration(absl::Now() - start);
  return 0;
}

void Daemon::Drain() {
  if (num_signals_ > 0) DrainBy(absl::Now() + options_.drain_grace);
  SetState(DaemonState::kDraining);
  ReachFaultPoint(FaultPoint::kDrain);
  gate_.Close();
  LOG(INFO) << "drain role " << role_ << " requests " << gate_.inside()
            << " grace " << absl::FormatDuration(drain_by() - absl::Now());
  if (on_drain_) on_drain_();
  std::vector<std::function<void(uint64_t)>> begun;
  {
    absl::MutexLock lock(&drain_mutex_);
    drain_began_ = true;
    begun.swap(await_drain_);
  }
  for (const auto& tell : begun) tell(gate_.inside());
  const Event event = AwaitEmptyGate();
  if (event == Event::kWoken) return;
  LOG(WARNING) << "drain cut by "
               << (event == Event::kSignal ? "a second signal" : "the grace")
               << " requests " << gate_.inside();
  gate_.Cut();
  const absl::Time cut_by = absl::Now() + kCutGrace;
  while (gate_.inside() > 0 && Await(cut_by) != Event::kTimeout) {
  }
}

Daemon::Event Daemon::AwaitEmptyGate() {
  while (gate_.inside() > 0) {
    const Event event = Await(drain_by());
    if (event == Event::kTimeout) return event;
    if (event != Event::kSignal) continue;
    if (++num_signals_ > 1) return event;
    DrainBy(absl::Now() + options_.drain_grace);  // The RPC's may be longer.
  }
  return Event::kWoken;
}

void Daemon::DrainBy(absl::Time time) {
  absl::MutexLock lock(&drain_mutex_);
  drain_by_ = std::min(drain_by_, time);
}

absl::Time Daemon::drain_by() const {
  absl::MutexLock lock(&drain_mutex_);
  return drain_by_;
}

void Daemon::RequestDrain(std::optional<absl::Duration> grace,
                          std::function<void(uint64_t)> begun) {
  DrainBy(absl::Now() + grace.value_or(options_.drain_grace));
  {
    absl::MutexLock lock(&drain_mutex_);
    if (!drain_began_) {
      if (begun) await_drain_.push_back(std::move(begun));
      begun = nullptr;
    }
  }
  stop_requested_.store(true);
  Wake();
  if (begun) begun(gate_.inside());
}

Daemon::Event Daemon::Await(absl::Time deadline) {
  while (true) {
    if (look_now_.exchange(false)) {
      next_look_ = std::min(next_look_, looked_at_ + kShortLook);
    }
    if (absl::Now() >= next_look_) {
      const bool is_short = memory_guard_.Check() != MemoryPressure::kNone;
      looked_at_ = absl::Now();
      next_look_ = looked_at_ + (is_short ? std::min(kShortLook, options_.tick)
                                          : options_.tick);
    }
    const absl::Time now = absl::Now();
    if (now >= next_tick_) {
      next_tick_ = now + options_.tick;
      if (on_tick_) on_tick_();
    }
    const Event event = Poll(std::min({deadline, next_tick_, next_look_}));
    if (event != Event::kTimeout || absl::Now() >= deadline) return event;
  }
}

Daemon::Event Daemon::Poll(absl::Time deadline) {
  pollfd fds[] = {{signal_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  while (true) {
    const absl::Duration left =
        std::max(absl::ZeroDuration(), deadline - absl::Now());
    poll(fds, 2,
         static_cast<int>(absl::ToInt64Milliseconds(
             absl::Ceil(left, absl::Milliseconds(1)))));
    if (Take(signal_fd_)) return Event::kSignal;
    if (Take(wake_fd_)) return Event::kWoken;
    if (left == absl::ZeroDuration()) return Event::kTimeout;
  }
}

void Daemon::Wake() {
  const uint64_t one = 1;
  CHECK_EQ(write(wake_fd_, &one, sizeof(one)),
           static_cast<ssize_t>(sizeof(one)));
}

void Daemon::SetState(DaemonState to) {
  absl::MutexLock lock(&ready_mutex_);
  const DaemonState from = state();
  CHECK(IsLegalTransition(from, to))
      << static_cast<int>(from) << " to " << static_cast<int>(to);
  state_.store(to, std::memory_order_release);
  if (to == DaemonState::kServing || to == DaemonState::kDraining) TellHealth();
}

void Daemon::SetReady(bool ready) {
  absl::MutexLock lock(&ready_mutex_);
  ready_ = ready;
  if (state() == DaemonState::kServing) TellHealth();
}

void Daemon::SetLive(bool live) {
  absl::MutexLock lock(&ready_mutex_);
  if (live_ == live) return;
  live_ = live;
  LOG(WARNING) << "role " << role_ << (live ? " lives again" : " is stuck");
  const DaemonState now = state();
  if (now == DaemonState::kServing || now == DaemonState::kDraining) {
    TellHealth();
  }
}

void Daemon::TellHealth() {
  const bool serving = state() == DaemonState::kServing;
  SetLiveness(server_.get(), live_);
  SetReadiness(server_.get(), serving && ready_ && live_, service_names_);
}

bool Daemon::IsReady() const {
  absl::MutexLock lock(&ready_mutex_);
  return ready_ && live_ && state() == DaemonState::kServing;
}

bool Daemon::IsLive() const {
  absl::MutexLock lock(&ready_mutex_);
  return live_;
}

int Daemon::metrics_port() const {
  return metrics_server_ == nullptr ? 0 : metrics_server_->port();
}

}  // namespace baton
