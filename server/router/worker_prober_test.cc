#include "server/router/worker_prober.h"

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/edge/health.h"
#include "server/router/fake_worker_for_test.h"
#include "server/router/worker_client.h"

namespace baton {
namespace {

v1::GetWorkerInfoResponse Info() {
  v1::GetWorkerInfoResponse info;
  info.set_role(v1::WORKER_ROLE_UNIFIED);
  info.set_text_hash("text");
  info.set_max_context_tokens(77);
  return info;
}

class WorkerProberTest : public ::testing::Test {
 protected:
  WorkerProberTest()
      : client_(worker_.address()),
        pool_({.workers = {{worker_.address(), v1::WORKER_ROLE_UNIFIED}},
               .text_hash = "text",
               .vocab_size = 0,
               .make_policy = [] { return MakeRoutingPolicy("round_robin"); },
               .on_ready_change = {}}) {}

  void Start(absl::Duration interval) {
    prober_ = std::make_unique<WorkerProber>(
        WorkerProber::Options{.interval = interval}, WorkerId(0), &client_,
        &pool_);
  }
  bool Becomes(WorkerState state) {
    return WaitFor([&] { return pool_.state(WorkerId(0)) == state; });
  }

  FakeWorker worker_{Info()};
  WorkerClient client_;
  WorkerPool pool_;
  std::unique_ptr<WorkerProber> prober_;
};

TEST_F(WorkerProberTest, TellsThePoolWhatTheWorkerSays) {
  Start(absl::Hours(1));
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  EXPECT_EQ(pool_.Served()->max_context_tokens, 77u);
}

TEST_F(WorkerProberTest, NoticesAWorkerThatStopsServingAndServesAgain) {
  Start(absl::Milliseconds(2));
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  SetReadiness(worker_.server(), false);
  EXPECT_TRUE(Becomes(WorkerState::kUnhealthy));
  SetReadiness(worker_.server(), true);
  EXPECT_TRUE(Becomes(WorkerState::kReady));
}

TEST_F(WorkerProberTest, NoticesAWorkerThatDies) {
  Start(absl::Milliseconds(2));
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  worker_.Die();
  EXPECT_TRUE(Becomes(WorkerState::kUnhealthy));
}

TEST_F(WorkerProberTest, FindsAWorkerThatComesLate) {
  const std::string address = worker_.address();
  worker_.Die();
  Start(absl::Hours(1));
  EXPECT_TRUE(Becomes(WorkerState::kUnhealthy));
  FakeWorker late(Info(), address);
  // gRPC's own poller would find it in 5 s.
  EXPECT_TRUE(
      WaitFor([&] { return pool_.state(WorkerId(0)) == WorkerState::kReady; },
              absl::Seconds(4)));
}

TEST_F(WorkerProberTest, ProbesAtOnceWhenAsked) {
  Start(absl::Hours(1));
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  worker_.Die();
  pool_.OnSuspect(WorkerId(0));
  prober_->ProbeSoon();
  EXPECT_TRUE(Becomes(WorkerState::kUnhealthy));
}

TEST_F(WorkerProberTest, StopsInTheMiddleOfAProbe) {
  absl::Notification asked;
  absl::Notification go_on;
  worker_.SetOnGetLoad([&] {
    asked.Notify();
    go_on.WaitForNotification();
  });
  prober_ = std::make_unique<WorkerProber>(
      WorkerProber::Options{.timeout = absl::Hours(1)}, WorkerId(0), &client_,
      &pool_);
  asked.WaitForNotification();
  prober_.reset();
  EXPECT_EQ(pool_.state(WorkerId(0)), WorkerState::kUnhealthy);
  go_on.Notify();
  worker_.Die();  // Its call uses both notifications.
}

}  // namespace
}  // namespace baton
