// Workers that come and go while the router serves.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/router/router_for_test.h"
#include "server/router/worker_discovery.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

class RouterDiscoveryTest : public ::testing::Test {
 protected:
  RouterDiscoveryTest() {
    std::string name = fs::path(::testing::TempDir()) / "workers_XXXXXX";
    folder_ = mkdtemp(name.data());
    first_.SetDecode(GoodDecode());
    second_.SetDecode(GoodDecode());
    SetFile("# nobody yet\n");
    router_ = std::make_unique<RouterForTest>(RouterForTest::Options({}));
    auto discovery =
        WorkerDiscovery::Start({.workers_file = folder_ / "workers",
                                .file_interval = absl::Milliseconds(1),
                                .on_change = [this](const auto& workers) {
                                  router_->router().SetWorkers(workers);
                                }});
    EXPECT_TRUE(discovery.ok()) << discovery.status();
    discovery_ = *std::move(discovery);
  }
  ~RouterDiscoveryTest() override {
    discovery_.reset();
    fs::remove_all(folder_);
  }

  void SetFile(const std::string& text) {
    std::ofstream(folder_ / "next") << text;
    fs::rename(folder_ / "next", folder_ / "workers");
  }
  static std::string Line(const FakeWorker& worker) {
    return "unified " + worker.address() + "\n";
  }
  WorkerPool& pool() { return router_->router().pool(); }
  int NumWorkers(WorkerState state) {
    return pool().CountStates()[static_cast<int>(state)];
  }
  bool AwaitWorkers(WorkerState state, int count) {
    return WaitFor([=, this] { return NumWorkers(state) == count; });
  }

  FakeWorker first_{DemoInfo(v1::WORKER_ROLE_UNIFIED)};
  FakeWorker second_{DemoInfo(v1::WORKER_ROLE_UNIFIED)};
  fs::path folder_;
  std::unique_ptr<RouterForTest> router_;
  std::unique_ptr<WorkerDiscovery> discovery_;
};

TEST_F(RouterDiscoveryTest, WaitsForTheFirstWorkerOfAnEmptyList) {
  EXPECT_EQ(router_->Generate(IdsRequest(2)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  SetFile(Line(first_));
  pool().WaitUntilReady();
  EXPECT_EQ(router_->Generate(IdsRequest(2)).text, "ab");
}

TEST_F(RouterDiscoveryTest, OneThatJoinsTakesRequestsBesideTheFirst) {
  SetFile(Line(first_));
  EXPECT_TRUE(AwaitWorkers(WorkerState::kReady, 1));
  SetFile(Line(first_) + Line(second_));
  EXPECT_TRUE(AwaitWorkers(WorkerState::kReady, 2));
  first_.SetRunning(50);
  EXPECT_TRUE(WaitFor([&] {
    EXPECT_EQ(router_->Generate(IdsRequest(2)).text, "ab");
    return !second_.requests().empty();
  }));
}

TEST_F(RouterDiscoveryTest, OneThatLeavesFinishesItsStreamAndGetsNoOther) {
  absl::Notification go_on;
  first_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        stream->SendTokens(0, LetterTokens(0, 1));
        go_on.WaitForNotification();
        return GoodDecode()(request, stream);
      });
  SetFile(Line(first_));
  EXPECT_TRUE(AwaitWorkers(WorkerState::kReady, 1));
  GenerateOutcome running;
  std::thread client([&] { running = router_->Generate(IdsRequest(5)); });
  EXPECT_TRUE(WaitFor([&] { return first_.num_open() == 1; }));

  SetFile(Line(second_));
  EXPECT_TRUE(AwaitWorkers(WorkerState::kLeft, 1));
  EXPECT_TRUE(AwaitWorkers(WorkerState::kReady, 1));
  EXPECT_EQ(
      router_->Metric("baton_router_workers{role=\"router\",pool=\"unified\","
                      "state=\"left\"}"),
      1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(router_->Generate(IdsRequest(2)).text, "ab");
  }
  EXPECT_EQ(second_.requests().size(), 5u);
  go_on.Notify();
  client.join();
  EXPECT_TRUE(running.status.ok()) << running.status.error_message();
  EXPECT_EQ(running.text, "abcde");
  EXPECT_EQ(first_.requests().size(), 1u);
  EXPECT_TRUE(AwaitWorkers(WorkerState::kLeft, 0));
}

TEST_F(RouterDiscoveryTest, AStreamGoesOnElsewhereIfTheOneThatLeftDies) {
  absl::Notification die;
  first_.SetDecode([&](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    stream->SendTokens(0, LetterTokens(0, 2));
    die.WaitForNotification();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
  });
  SetFile(Line(first_));
  EXPECT_TRUE(AwaitWorkers(WorkerState::kReady, 1));
  GenerateOutcome running;
  std::thread client([&] { running = router_->Generate(IdsRequest(4)); });
  EXPECT_TRUE(WaitFor([&] { return first_.num_open() == 1; }));
  // Resumes at token 2 of "abcd".
  second_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    stream->SendTokens(2, LetterTokens(2, 2));
    SendFinished(stream, v1::WORKER_FINISH_REASON_LENGTH, 4);
    return grpc::Status::OK;
  });
  SetFile(Line(second_));
  EXPECT_TRUE(AwaitWorkers(WorkerState::kLeft, 1));
  die.Notify();
  client.join();
  EXPECT_EQ(running.text, "abcd") << running.status.error_message();
  EXPECT_EQ(second_.requests().size(), 1u);
  EXPECT_TRUE(AwaitWorkers(WorkerState::kLeft, 0));
}

}  // namespace
}  // namespace baton
