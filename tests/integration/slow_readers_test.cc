// A thousand clients that never read, and some that do, through a router and a
// worker within one process, over a model whose tokens prove its cache.
#include <grpcpp/grpcpp.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "server/edge/stream_budget.h"
#include "server/router/router_for_test.h"
#include "tests/integration/in_process_worker.h"

namespace baton {
namespace {

constexpr int kNumStuck = 1000;
constexpr int kNumHealthy = 12;
constexpr uint32_t kHealthyTokens = 96;
constexpr uint32_t kMaxRunning = 48;
constexpr absl::Duration kLongest = absl::Minutes(5);

int64_t ResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "VmRSS:") {
  }
  int64_t kib = 0;
  status >> kib;
  return kib * 1024;
}

// A call that is begun and not read, until ReadOn.
class StuckClient final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  StuckClient(v1::InferenceService::Stub* stub,
              const v1::GenerateRequest& request)
      : request_(request) {
    stub->async()->Generate(&context_, &request_, this);
    AddHold();
    StartCall();
  }

  void ReadOn() {
    StartRead(&response_);
    RemoveHold();
  }
  // REQUIRES: ReadOn.
  grpc::Status AwaitEnd() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&over_));
    return status_;
  }

 private:
  void OnReadDone(bool ok) override {
    if (ok) StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mutex_);
    status_ = status;
    over_ = true;
  }

  const v1::GenerateRequest request_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  absl::Mutex mutex_;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

class SlowReadersTest : public testing::Test {
 protected:
  // Of router and worker. The test moves their time.
  void Start(const StreamLimits& limits) {
    worker_ = std::make_unique<InProcessWorker>(InProcessWorker::Options{
        .info = DemoInfo(v1::WORKER_ROLE_UNIFIED),
        .streams = limits,
        .max_running_requests = kMaxRunning,
        .max_waiting_requests = 4 * kNumStuck,
        .num_blocks = 8 * kMaxRunning});  // Too few for all that run.
    Router::Options router = RouterForTest::Options({});
    router.workers = {{worker_->address(), v1::WORKER_ROLE_UNIFIED}};
    router.streams = limits;
    router.admission.max_queued_requests = 4 * kNumStuck;
    router_ = std::make_unique<RouterForTest>(std::move(router));
    router_->router().pool().WaitUntilReady();
    // A connection of its own, which keeps little in this process.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4096);
    stuck_stub_ = v1::InferenceService::NewStub(grpc::CreateCustomChannel(
        router_->address(), grpc::InsecureChannelCredentials(), arguments));
  }

  // Not what they hold in memory, which alone would take long to fill.
  static StreamLimits Limits() {
    return {.pause_bytes = 8 * 1024,
            .resume_bytes = 2 * 1024,
            .slow_reader_timeout = absl::Hours(1)};
  }

  void StartStuck(int count) {
    for (int i = 0; i < count; ++i) {
      v1::GenerateRequest request = IdsRequest(4000);
      request.mutable_prompt()->mutable_token_ids()->add_ids(20 + i % 1000);
      request.mutable_stopping()->set_ignore_eos(true);
      request.mutable_logprobs()->set_top(20);
      stuck_.emplace_back(stuck_stub_.get(), request);
    }
  }

  // What each healthy client gets, all of them at once.
  std::vector<std::vector<uint32_t>> RunHealthy() {
    std::vector<std::vector<uint32_t>> tokens(kNumHealthy);
    std::vector<std::thread> clients;
    for (int i = 0; i < kNumHealthy; ++i) {
      clients.emplace_back([this, i, &tokens] {
        v1::GenerateRequest request = IdsRequest(kHealthyTokens);
        request.mutable_prompt()->mutable_token_ids()->add_ids(53 + i);
        request.mutable_stopping()->set_ignore_eos(true);
        const GenerateOutcome outcome = router_->Generate(request);
        EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
        tokens[i] = outcome.token_ids;
      });
    }
    for (std::thread& client : clients) client.join();
    return tokens;
  }

  template <typename Condition>
  static void Await(const Condition& condition, const char* what) {
    absl::Mutex mutex;
    const absl::Time deadline = absl::Now() + kLongest;
    while (!condition()) {
      ASSERT_LT(absl::Now(), deadline) << what;
      // A condition that never comes is the pause.
      absl::MutexLock lock(&mutex);
      const bool never = false;
      mutex.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(5));
    }
  }

  StreamCounts RouterCounts() { return router_->router().streams().counts(); }

  std::unique_ptr<InProcessWorker> worker_;
  std::unique_ptr<RouterForTest> router_;
  std::unique_ptr<v1::InferenceService::Stub> stuck_stub_;
  std::deque<StuckClient> stuck_;
};

TEST_F(SlowReadersTest, AThousandThatNeverReadCostTheOthersNothing) {
  Start(Limits());
  absl::Time start = absl::Now();
  const auto alone = RunHealthy();
  const absl::Duration time_alone = absl::Now() - start;
  for (const auto& tokens : alone) ASSERT_EQ(tokens.size(), kHealthyTokens);
  const int64_t memory_before = ResidentBytes();

  start = absl::Now();
  StartStuck(kNumStuck);
  // More of them than places, in the router and in the worker's batch.
  Await([&] { return RouterCounts().paused == kNumStuck; }, "router's pauses");
  Await(
      [&] { return worker_->num_paused() == kNumStuck && !worker_->is_busy(); },
      "worker's pauses");
  const int64_t memory = (ResidentBytes() - memory_before) / kNumStuck;
  std::cerr << "paused within " << absl::Now() - start << ", " << memory
            << " bytes of memory for each in client, router and worker; "
            << RouterCounts().bytes / kNumStuck
            << " bytes queued in the router, "
            << worker_->streams().counts().bytes / kNumStuck
            << " in the worker\n";
  // Two processes of 256 KiB each, were they two.
  EXPECT_LT(memory, 2 * 256 * 1024);
  EXPECT_LT(RouterCounts().bytes, kNumStuck * 64u * 1024);
  EXPECT_EQ(router_->Metric("baton_slow_readers{role=\"router\"}"), kNumStuck);
  EXPECT_GE(router_->Metric("baton_slow_readers_paused_total{role=\"router\"}"),
            kNumStuck);

  start = absl::Now();
  const auto beside = RunHealthy();
  const absl::Duration time_beside = absl::Now() - start;
  EXPECT_EQ(beside, alone);
  std::cerr << kNumHealthy << " healthy ones took " << time_alone << " alone, "
            << time_beside << " beside the stuck ones\n";
  EXPECT_EQ(RouterCounts().cut_by_timeout + RouterCounts().cut_by_memory, 0u);

  for (int i = 0; i <= StreamBudget::kTicksToCut; ++i) {
    router_->router().streams().Tick();
  }
  for (StuckClient& client : stuck_) client.ReadOn();
  for (StuckClient& client : stuck_) {
    const grpc::Status status = client.AwaitEnd();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
    EXPECT_EQ(status.error_message().rfind(kSlowReaderReason, 0), 0u)
        << status.error_message();
  }
  EXPECT_EQ(RouterCounts().cut_by_timeout, static_cast<uint64_t>(kNumStuck));
  EXPECT_EQ(
      router_->Metric("baton_slow_readers_cut_total{role=\"router\",reason="
                      "\"timeout\"}"),
      kNumStuck);
  Await([&] { return worker_->num_calls() == 0; }, "worker's calls");
  Await([&] { return worker_->num_paused() == 0; }, "worker's pauses' end");
  Await([&] { return RouterCounts().bytes == 0; }, "router's bytes");
  EXPECT_EQ(RunHealthy(), alone);
}

TEST_F(SlowReadersTest, ThoseThatReadOnGetEveryToken) {
  Start(Limits());
  constexpr int kCount = 40;
  v1::GenerateRequest request = IdsRequest(2500);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_logprobs()->set_top(20);
  const GenerateOutcome whole = router_->Generate(request);
  ASSERT_EQ(whole.token_ids.size(), 2500u);
  std::vector<std::thread> clients;
  std::vector<grpc::ClientContext> contexts(kCount);
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> calls;
  for (int i = 0; i < kCount; ++i) {
    calls.push_back(stuck_stub_->Generate(&contexts[i], request));
  }
  Await([&] { return RouterCounts().paused == kCount; }, "router's pauses");
  Await([&] { return worker_->num_paused() == kCount; }, "worker's pauses");
  for (int i = 0; i < kCount; ++i) {
    clients.emplace_back([&, i] {
      const GenerateOutcome outcome = ReadAll(calls[i].get());
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
      EXPECT_EQ(outcome.token_ids, whole.token_ids);
      EXPECT_EQ(outcome.logprobs, whole.logprobs);
      EXPECT_EQ(outcome.text, whole.text);
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST_F(SlowReadersTest, BeyondTheBytesOfAllTheStuckAreCutAndTheOthersAreNot) {
  StreamLimits limits = Limits();
  limits.max_bytes = 256 * 1024;
  Start(limits);
  const auto alone = RunHealthy();
  StartStuck(100);
  // Each has some 8 KiB in the router and 8 in the worker before it stands.
  Await([&] { return RouterCounts().cut_by_memory > 40; }, "router's cuts");
  EXPECT_EQ(RunHealthy(), alone);
  // One message of each stream may be on its way.
  EXPECT_LE(RouterCounts().bytes, limits.max_bytes + 100 * 1024);
  for (int i = 0; i <= StreamBudget::kTicksToCut; ++i) {
    router_->router().streams().Tick();
  }
  for (StuckClient& client : stuck_) client.ReadOn();
  for (StuckClient& client : stuck_) {
    EXPECT_EQ(client.AwaitEnd().error_code(), grpc::StatusCode::ABORTED);
  }
}

}  // namespace
}  // namespace baton
