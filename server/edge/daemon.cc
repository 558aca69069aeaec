#include "server/edge/daemon.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
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
#include "server/edge/grpc_limits.h"
#include "server/edge/health.h"
#include "server/edge/version.h"

namespace baton {
namespace {

// What the drain cuts gets this long to end: a step, and its last message.
constexpr absl::Duration kCutGrace = absl::Seconds(1);
// What is left after it gets this long to hear that it was cancelled.
constexpr std::chrono::milliseconds kCancelGrace(200);
constexpr int kMaxMetadataBytes = 16 * 1024;
// Clients may ping this often; a silent one is asked, and gone after both.
constexpr int kMinPingIntervalMilliseconds = 5'000;
constexpr int kKeepaliveTimeMilliseconds = 20'000;
constexpr int kKeepaliveTimeoutMilliseconds = 10'000;

// The limit of a message is looked after when it has been blown up already: a
// few KiB may have become gigabytes. So they are UNIMPLEMENTED.
void RefuseCompressedMessages(grpc::ServerBuilder* builder) {
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

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
              .help = "How long running requests may go on after SIGTERM.",
              .min = 0,
              .max = 86400});
  flags->Add(&options->verbosity, {.name = "verbosity",
                                   .help = "1 logs state transitions, 2 more.",
                                   .max = 9});
}

Daemon::Daemon(DaemonOptions options, std::string role, const Flags& flags)
    : options_(std::move(options)),
      role_(std::move(role)),
      signal_fd_(NewEventFd(EFD_SEMAPHORE)),
      wake_fd_(NewEventFd(0)),
      gate_([this] { Wake(); }) {
  SetVlogLevel(static_cast<int>(options_.verbosity));
  // Debian's Abseil checks the order of all locks, gRPC's too, on every lock:
  // for tests, where nothing turns it off.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  Handle(&OnSignal);
  Unblock();
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
                                      .ready = [this] { return IsReady(); }});
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
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      kMinPingIntervalMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             kKeepaliveTimeMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             kKeepaliveTimeoutMilliseconds);
  builder.SetMaxReceiveMessageSize(kMaxGrpcMessageBytes);
  RefuseCompressedMessages(&builder);
  builder.AddListeningPort(options_.listen, grpc::InsecureServerCredentials(),
                           &grpc_port_);
  for (const ServedService& served : services) {
    builder.RegisterService(served.service);
    service_names_.push_back(served.name);
  }
  handler_fd.store(signal_fd_);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || grpc_port_ == 0) {
    SetState(DaemonState::kStopped);
    metrics_server_.reset();  // Its callbacks may outlive what they look at.
    return FieldError("listen", "cannot listen on " + options_.listen);
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
    if (Await(absl::InfiniteFuture()) == Event::kSignal) break;
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
  const absl::Time start = absl::Now();
  SetState(DaemonState::kDraining);
  ReachFaultPoint(FaultPoint::kDrain);
  LOG(INFO) << "drain role " << role_ << " requests " << gate_.inside()
            << " grace " << absl::FormatDuration(options_.drain_grace);
  gate_.Close();
  if (on_drain_) on_drain_();
  const Event event = AwaitEmptyGate(start + options_.drain_grace);
  if (event == Event::kWoken) return;
  LOG(WARNING) << "drain cut by "
               << (event == Event::kSignal ? "a second signal" : "the grace")
               << " requests " << gate_.inside();
  gate_.Cut();
  AwaitEmptyGate(absl::Now() + kCutGrace);
}

Daemon::Event Daemon::AwaitEmptyGate(absl::Time deadline) {
  while (gate_.inside() > 0) {
    const Event event = Await(deadline);
    if (event != Event::kWoken) return event;
  }
  return Event::kWoken;
}

Daemon::Event Daemon::Await(absl::Time deadline) {
  pollfd fds[] = {{signal_fd_, POLLIN, 0}, {wake_fd_, POLLIN, 0}};
  while (true) {
    int timeout = -1;
    if (deadline != absl::InfiniteFuture()) {
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) return Event::kTimeout;
      timeout = static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
    }
    poll(fds, 2, timeout);
    if (Take(signal_fd_)) return Event::kSignal;
    if (Take(wake_fd_)) return Event::kWoken;
  }
}

void Daemon::Wake() {
  const uint64_t one = 1;
  CHECK_EQ(write(wake_fd_, &one, sizeof(one)),
           static_cast<ssize_t>(sizeof(one)));
}

void Daemon::Stop() {
  stop_requested_.store(true);
  Wake();
}

void Daemon::SetState(DaemonState to) {
  absl::MutexLock lock(&ready_mutex_);
  const DaemonState from = state();
  CHECK(IsLegalTransition(from, to))
      << static_cast<int>(from) << " to " << static_cast<int>(to);
  state_.store(to, std::memory_order_release);
  if (to == DaemonState::kServing) {
    SetReadiness(server_.get(), ready_, service_names_);
  }
  if (to == DaemonState::kDraining) {
    SetReadiness(server_.get(), false, service_names_);
  }
}

void Daemon::SetReady(bool ready) {
  absl::MutexLock lock(&ready_mutex_);
  ready_ = ready;
  if (state() == DaemonState::kServing) {
    SetReadiness(server_.get(), ready, service_names_);
  }
}

bool Daemon::IsReady() const {
  absl::MutexLock lock(&ready_mutex_);
  return ready_ && state() == DaemonState::kServing;
}

int Daemon::metrics_port() const {
  return metrics_server_ == nullptr ? 0 : metrics_server_->port();
}

}  // namespace baton
