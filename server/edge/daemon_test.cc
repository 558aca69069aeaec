#include "server/edge/daemon.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <atomic>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/field_error.h"
#include "proto/baton/v1/admin.grpc.pb.h"
#include "proto/baton/v1/health.grpc.pb.h"
#include "server/edge/memory_use.h"

namespace baton {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

TEST(DaemonStateTest, OnlyTheDrawnTransitionsAreLegal) {
  using enum DaemonState;
  const std::vector<DaemonState> all = {kStarting, kServing, kDraining,
                                        kStopped};
  for (const DaemonState from : all) {
    for (const DaemonState to : all) {
      const bool legal = (from == kStarting && to == kServing) ||
                         (from == kStarting && to == kStopped) ||
                         (from == kServing && to == kDraining) ||
                         (from == kDraining && to == kStopped);
      EXPECT_EQ(IsLegalTransition(from, to), legal)
          << static_cast<int>(from) << " to " << static_cast<int>(to);
    }
  }
}

TEST(DaemonLimitTest, TakesAllDescriptorsThatItMayHave) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t most = limit.rlim_max;
  limit.rlim_cur = 100;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const Daemon daemon({}, "test", Flags("test", "A test."));
  getrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(limit.rlim_cur, most);
}

class DaemonTest : public ::testing::Test {
 protected:
  DaemonTest() : flags_("test", "A test.") {}

  void Start(absl::Duration grace, std::function<void()> on_tick = {},
             absl::Duration tick = absl::Milliseconds(1)) {
    daemon_ = std::make_unique<Daemon>(
        DaemonOptions{.drain_grace = grace,
                      .memory = {.read = [this] { return ReadMemory(); }},
                      .tick = tick},
        "test", flags_);
    if (on_tick) daemon_->OnTick(std::move(on_tick));
    daemon_->OnShed([this] { return uint64_t{++num_sheds_}; });
    ASSERT_TRUE(daemon_->StartMetrics({}).ok());
    ASSERT_TRUE(daemon_->Serve({{"test.Service", &service_}}).ok());
    channel_ =
        grpc::CreateChannel("127.0.0.1:" + std::to_string(daemon_->grpc_port()),
                            grpc::InsecureChannelCredentials());
    stub_ = Health::NewStub(channel_);
    runner_ = std::thread([this] { exit_code_ = daemon_->Run(); });
  }

  void Join() {
    runner_.join();
    EXPECT_EQ(exit_code_, 0);
    EXPECT_EQ(daemon_->state(), DaemonState::kStopped);
  }

  HealthCheckResponse::ServingStatus Check(const std::string& service) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    const grpc::Status status = stub_->Check(&context, request, &response);
    EXPECT_TRUE(status.ok()) << service << status.error_message();
    return response.status();
  }

  // Blocks until `want` is reported, by the server's own stream of changes.
  void AwaitReadiness(HealthCheckResponse::ServingStatus want) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(60));
    HealthCheckRequest request;
    request.set_service("readiness");
    auto reader = stub_->Watch(&context, request);
    HealthCheckResponse response;
    do {
      ASSERT_TRUE(reader->Read(&response));
    } while (response.status() != want);
    context.TryCancel();
    reader->Finish();
  }

  // The first of Watch's answers.
  HealthCheckResponse::ServingStatus Watch(const std::string& service) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    auto reader = stub_->Watch(&context, request);
    HealthCheckResponse response;
    EXPECT_TRUE(reader->Read(&response)) << service;
    context.TryCancel();
    reader->Finish();
    return response.status();
  }

  // As an operator on this host, with this grace.
  grpc::Status Drain(std::optional<int> grace_seconds,
                     v1::DrainResponse* response) {
    grpc::ClientContext context;
    v1::DrainRequest request;
    if (grace_seconds.has_value()) {
      request.mutable_grace()->set_seconds(*grace_seconds);
    }
    return v1::AdminService::NewStub(channel_)->Drain(&context, request,
                                                      response);
  }

  std::optional<MemoryUse> ReadMemory() {
    absl::MutexLock lock(&mutex_);
    return memory_;
  }
  void SetMemory(uint64_t percent) {
    absl::MutexLock lock(&mutex_);
    memory_ = {.used_bytes = percent << 30, .limit_bytes = uint64_t{100} << 30};
  }

  absl::Mutex mutex_;
  std::optional<MemoryUse> memory_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint32_t> num_sheds_{0};
  Flags flags_;
  grpc::Service service_;
  std::unique_ptr<Daemon> daemon_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Health::Stub> stub_;
  std::thread runner_;
  int exit_code_ = -1;
};

TEST(DaemonFlagsTest, ABadAddressIsRefusedByNameAlsoWhenOnlyChecking) {
  for (const std::string flag : {"--listen", "--metrics_listen"}) {
    for (const std::string bad : {"foo", "127.0.0.1", "127.0.0.1:99999"}) {
      Flags flags("test", "A test.");
      DaemonOptions options;
      AddDaemonFlags(&flags, &options);
      const std::vector<std::string> arguments = {flag + "=" + bad, "--check"};
      const FlagsOutcome outcome = flags.Parse(arguments, nullptr, {});
      EXPECT_EQ(outcome.exit_code, 2) << outcome.text;
      EXPECT_EQ(outcome.text.find("test: " + flag + ": must be host:port"), 0)
          << outcome.text;
    }
  }
}

TEST(DaemonFlagsTest, ATokenFileThatIsNoneIsRefusedByName) {
  EXPECT_TRUE(ValidateDaemonOptions({}).ok());
  EXPECT_EQ(ErrorField(ValidateDaemonOptions({.admin_token_file = "/no"})),
            "admin_token_file");
}

TEST(DaemonFlagsTest, WaitingRequestsAreNotShedBeforeNewOnesAreRefused) {
  const auto refused = [](double refuse_ratio, double shed_ratio) {
    return ErrorField(ValidateDaemonOptions(
        {.memory = {.refuse_ratio = refuse_ratio, .shed_ratio = shed_ratio}}));
  };
  EXPECT_EQ(refused(0.99, 0.98), "memory_refuse_ratio");
  EXPECT_EQ(refused(0.98, 0.98), std::nullopt);
  EXPECT_EQ(refused(0.99, 0), std::nullopt) << "none are shed";
  EXPECT_EQ(refused(0, 0.98), std::nullopt) << "none are refused";
}

TEST(DaemonDeathTest, ASignalBeforeServingEndsTheProcessWithCodeZero) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int signal : {SIGTERM, SIGINT}) {
    EXPECT_EXIT(
        {
          const Flags flags("test", "A test.");
          const Daemon daemon({}, "test", flags);
          raise(signal);
        },
        ::testing::ExitedWithCode(0), "");
  }
}

TEST_F(DaemonTest, ASignalEndsAnIdleProcessWithCodeZero) {
  Start(absl::Seconds(60));
  EXPECT_EQ(Check(""), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check("readiness"), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check("liveness"), HealthCheckResponse::SERVING);
  EXPECT_EQ(daemon_->state(), DaemonState::kServing);
  EXPECT_GT(daemon_->metrics_port(), 0);
  kill(getpid(), SIGTERM);
  Join();
}

TEST_F(DaemonTest, DrainingIsNotServingAndWaitsForTheLastRequest) {
  Start(absl::Seconds(60));
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  kill(getpid(), SIGINT);
  AwaitReadiness(HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("liveness"), HealthCheckResponse::SERVING);
  EXPECT_EQ(daemon_->state(), DaemonState::kDraining);
  while (daemon_->gate().Enter().ok()) daemon_->gate().Leave();
  daemon_->gate().Leave();
  Join();
}

TEST_F(DaemonTest, HealthKnowsTheServicesByNameAndNoOthers) {
  Start(absl::Seconds(60));
  for (const char* name : {"test.Service", "grpc.health.v1.Health"}) {
    EXPECT_EQ(Check(name), HealthCheckResponse::SERVING);
    EXPECT_EQ(Watch(name), HealthCheckResponse::SERVING);
  }
  daemon_->SetReady(false);
  EXPECT_EQ(Check("test.Service"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Watch("test.Service"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("grpc.health.v1.Health"), HealthCheckResponse::SERVING);

  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("no.such.Service");
  HealthCheckResponse response;
  EXPECT_EQ(stub_->Check(&context, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Watch("no.such.Service"), HealthCheckResponse::SERVICE_UNKNOWN);
  daemon_->Stop();
  Join();
}

TEST_F(DaemonTest, HealthSaysWhetherItCouldWorkNow) {
  Start(absl::Seconds(60));
  daemon_->SetReady(false);
  EXPECT_EQ(Check(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("readiness"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("liveness"), HealthCheckResponse::SERVING);
  EXPECT_EQ(daemon_->state(), DaemonState::kServing);
  daemon_->SetReady(true);
  EXPECT_EQ(Check("readiness"), HealthCheckResponse::SERVING);
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  daemon_->Stop();
  AwaitReadiness(HealthCheckResponse::NOT_SERVING);
  daemon_->SetReady(true);
  EXPECT_EQ(Check("readiness"), HealthCheckResponse::NOT_SERVING)
      << "never again once it drains";
  daemon_->gate().Leave();
  Join();
}

TEST_F(DaemonTest, WhatIsStuckIsNeitherLiveNorReadyUntilItGoesOn) {
  Start(absl::Seconds(60));
  daemon_->SetLive(false);
  EXPECT_EQ(Check("liveness"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("readiness"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("grpc.health.v1.Health"), HealthCheckResponse::SERVING);
  daemon_->SetReady(true);
  EXPECT_EQ(Check("readiness"), HealthCheckResponse::NOT_SERVING);
  daemon_->SetLive(true);
  EXPECT_EQ(Check("liveness"), HealthCheckResponse::SERVING);
  EXPECT_EQ(Check("readiness"), HealthCheckResponse::SERVING);
  daemon_->Stop();
  Join();
}

TEST_F(DaemonTest, TicksComeWhileItServesAndWhileItDrains) {
  absl::Notification served;
  absl::Notification drained;
  Start(absl::Hours(1), [&] {
    if (!served.HasBeenNotified()) served.Notify();
    if (daemon_->state() == DaemonState::kDraining &&
        !drained.HasBeenNotified()) {
      drained.Notify();
    }
  });
  served.WaitForNotification();
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  daemon_->Stop();
  drained.WaitForNotification();
  daemon_->gate().Leave();
  Join();
}

TEST_F(DaemonTest, WhomMemoryKeepsOutBringsALookBeforeItsTime) {
  Start(absl::Seconds(60), {}, /*tick=*/absl::Hours(1));
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  SetMemory(99);
  while (daemon_->gate().EnterWith({}).ok()) daemon_->gate().Leave();
  while (num_sheds_ == 0) std::this_thread::yield();
  daemon_->gate().Leave();
  daemon_->Stop();
  Join();
}

TEST_F(DaemonTest, ShedsLoadWhileMemoryIsShort) {
  Start(absl::Seconds(60));
  SetMemory(96);
  absl::Status refused;
  while ((refused = daemon_->gate().EnterWith({})).ok())
    daemon_->gate().Leave();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(num_sheds_, 0u);
  SetMemory(99);
  while (num_sheds_ == 0) std::this_thread::yield();
  SetMemory(50);
  while (!daemon_->gate().EnterWith({}).ok()) std::this_thread::yield();
  daemon_->gate().Leave();
  daemon_->Stop();
  Join();
}

TEST_F(DaemonTest, ASecondSignalEndsTheWait) {
  Start(absl::Hours(1));
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  kill(getpid(), SIGTERM);
  AwaitReadiness(HealthCheckResponse::NOT_SERVING);
  kill(getpid(), SIGTERM);
  Join();
}

TEST_F(DaemonTest, TheGraceCutsWhatIsLeft) {
  Start(absl::Milliseconds(1));
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  daemon_->gate().OnCut(this, [this] { daemon_->gate().Leave(this); });
  daemon_->Stop();
  Join();
  EXPECT_EQ(daemon_->gate().inside(), 0u);
}

TEST_F(DaemonTest, TheGraceEndsTheWait) {
  Start(absl::Milliseconds(1));
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  daemon_->Stop();
  Join();
}

TEST_F(DaemonTest, AnOperatorsDrainIsAsASignalAndSaysWhatRuns) {
  Start(absl::Hours(1));
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  v1::DrainResponse response;
  ASSERT_TRUE(Drain(std::nullopt, &response).ok());
  EXPECT_EQ(response.running_requests(), 1u);
  EXPECT_EQ(Check("readiness"), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(Check("baton.v1.AdminService"), HealthCheckResponse::NOT_SERVING);
  EXPECT_FALSE(daemon_->gate().Enter().ok());
  daemon_->gate().Leave();
  Join();
}

TEST_F(DaemonTest, AnOperatorsDrainMayOnlyShortenTheGraceOfARunningOne) {
  Start(absl::Hours(1));
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  v1::DrainResponse response;
  ASSERT_TRUE(Drain(3600, &response).ok());
  const uint64_t process = response.process();
  ASSERT_TRUE(Drain(std::nullopt, &response).ok());
  EXPECT_EQ(response.process(), process);
  EXPECT_EQ(daemon_->state(), DaemonState::kDraining);
  ASSERT_TRUE(Drain(0, &response).ok());
  Join();  // Although the request is still inside.
}

TEST_F(DaemonTest, ALongGraceAfterAShortOneDoesNotCount) {
  Start(absl::Hours(1));
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  bool cut = false;
  daemon_->gate().OnCut(this, [&] {
    cut = true;
    daemon_->gate().Leave(this);
  });
  daemon_->RequestDrain(absl::Milliseconds(1), {});
  daemon_->RequestDrain(absl::Hours(1), {});
  Join();
  EXPECT_TRUE(cut);
}

TEST_F(DaemonTest, TheFirstSignalOfAnOperatorsDrainDoesNotHurryTheSecondDoes) {
  std::atomic<uint64_t> ticks{0};
  Start(absl::Hours(1), [&] { ++ticks; });
  ASSERT_TRUE(daemon_->gate().Enter().ok());
  std::atomic<bool> cut{false};
  daemon_->gate().OnCut(this, [&] {
    cut = true;
    daemon_->gate().Leave(this);
  });
  v1::DrainResponse response;
  ASSERT_TRUE(Drain(3600, &response).ok());
  kill(getpid(), SIGTERM);
  // The daemon has taken the signal, and has waited on.
  for (const uint64_t before = ticks; ticks < before + 3;) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(cut);
  kill(getpid(), SIGTERM);
  Join();
  EXPECT_TRUE(cut);
}

TEST_F(DaemonTest, AnOpenHealthWatchDoesNotHoldTheEndUp) {
  Start(absl::Hours(1));
  grpc::ClientContext context;
  HealthCheckRequest request;
  auto reader = stub_->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  daemon_->Stop();
  Join();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  while (reader->Read(&response)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(DaemonTest, ATakenPortNamesItsFlag) {
  Start(absl::Seconds(60));
  Daemon second(
      DaemonOptions{
          .listen = "127.0.0.1:" + std::to_string(daemon_->grpc_port()),
          .metrics_listen =
              "127.0.0.1:" + std::to_string(daemon_->metrics_port())},
      "second", flags_);
  EXPECT_EQ(ErrorField(second.StartMetrics({})), "metrics_listen");
  EXPECT_EQ(ErrorField(second.Serve({})), "listen");
  EXPECT_EQ(second.state(), DaemonState::kStopped);
  daemon_->Stop();
  Join();
}

}  // namespace
}  // namespace baton
