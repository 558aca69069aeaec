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

v1::GetLoadResponse Load(uint32_t running) {
  v1::GetLoadResponse load;
  load.set_running_requests(running);
  return load;
}

class WorkerProberTest : public ::testing::Test {
 protected:
  WorkerProberTest()
      : client_(worker_.address()),
        pool_({.workers = {{worker_.address(), v1::WORKER_ROLE_UNIFIED},
                           {"other:1", v1::WORKER_ROLE_UNIFIED}},
               .text_hash = "text",
               .vocab_size = 0,
               .make_policy = [](v1::WorkerRole) {
                 return MakeRoutingPolicy("least_loaded");
               }}) {}

  // Nobody waits for a pause or for silence.
  void Start(WorkerProber::Options options = {.retry = absl::Milliseconds(2),
                                              .timeout = absl::Minutes(1),
                                              .max_silence = absl::Hours(1)}) {
    prober_ =
        std::make_unique<WorkerProber>(options, WorkerId(0), &client_, &pool_);
  }
  bool Becomes(WorkerState state) {
    return WaitFor([&] { return pool_.state(WorkerId(0)) == state; });
  }
  // Who would take a request.
  WorkerId Least() {
    const Route route = *pool_.FindRoute({});
    pool_.OnRequestEnded(route.decode, route.decode_rank, std::nullopt);
    return route.decode;
  }

  FakeWorker worker_{Info()};
  WorkerClient client_;
  WorkerPool pool_;
  std::unique_ptr<WorkerProber> prober_;
};

TEST_F(WorkerProberTest, TellsThePoolWhatTheWorkerSays) {
  Start();
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  EXPECT_EQ(pool_.Served()->max_context_tokens, 77u);
}

TEST_F(WorkerProberTest, TellsThePoolEachLoadThatIsPushed) {
  Start();
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  pool_.OnProbe(WorkerId(1), Info(), Load(5));
  worker_.SetRunning(9);
  EXPECT_TRUE(WaitFor([&] { return Least() == WorkerId(1); }));
  worker_.SetRunning(2);
  EXPECT_TRUE(WaitFor([&] { return Least() == WorkerId(0); }));
  EXPECT_EQ(worker_.num_infos(), 1) << "asked once a connection";
}

TEST_F(WorkerProberTest, NoticesAWorkerThatStopsServingAndServesAgain) {
  Start();
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  SetReadiness(worker_.server(), false);
  EXPECT_TRUE(Becomes(WorkerState::kUnhealthy));
  SetReadiness(worker_.server(), true);
  EXPECT_TRUE(Becomes(WorkerState::kReady));
}

TEST_F(WorkerProberTest, NoticesAWorkerThatDrainsBeforeItsHealthSaysSo) {
  Start();
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  worker_.Drain();
  EXPECT_TRUE(Becomes(WorkerState::kUnhealthy));
}

TEST_F(WorkerProberTest, NoticesAWorkerThatDies) {
  Start();
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  worker_.Die();
  EXPECT_TRUE(Becomes(WorkerState::kUnhealthy));
}

TEST_F(WorkerProberTest, NoticesAWorkerThatFallsSilent) {
  Start({.retry = absl::Milliseconds(2),
         .timeout = absl::Milliseconds(50),
         .max_silence = absl::Milliseconds(200)});
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  worker_.SetSilent(true);
  EXPECT_TRUE(Becomes(WorkerState::kUnhealthy));
  worker_.SetSilent(false);
  EXPECT_TRUE(Becomes(WorkerState::kReady));
}

TEST_F(WorkerProberTest, KnowsAProcessThatTookThePlaceOfAnother) {
  const std::string address = worker_.address();
  Start();
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  worker_.Die();
  v1::GetWorkerInfoResponse other = Info();
  other.set_max_context_tokens(99);
  FakeWorker next(other, address);
  EXPECT_TRUE(WaitFor([&] {
    const auto served = pool_.Served();
    return served.ok() && served->max_context_tokens == 99;
  }));
}

TEST_F(WorkerProberTest, FindsAWorkerThatComesLate) {
  const std::string address = worker_.address();
  worker_.Die();
  Start({.retry = absl::Hours(1), .timeout = absl::Minutes(1)});
  FakeWorker late(Info(), address);
  // gRPC's own poller would find it in 5 s.
  EXPECT_TRUE(
      WaitFor([&] { return pool_.state(WorkerId(0)) == WorkerState::kReady; },
              absl::Seconds(4)));
}

TEST_F(WorkerProberTest, AsksASuspectAtOnce) {
  Start();
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  pool_.OnSuspect(WorkerId(0));
  EXPECT_EQ(pool_.state(WorkerId(0)), WorkerState::kSuspect);
  prober_->ProbeSoon();
  EXPECT_TRUE(Becomes(WorkerState::kReady));
  EXPECT_EQ(worker_.num_infos(), 2);
}

TEST_F(WorkerProberTest, StopsInTheMiddleOfAQuestion) {
  absl::Notification asked;
  absl::Notification go_on;
  worker_.SetOnGetInfo([&] {
    asked.Notify();
    go_on.WaitForNotification();
  });
  Start({.timeout = absl::Hours(1)});
  asked.WaitForNotification();
  prober_.reset();
  EXPECT_EQ(pool_.state(WorkerId(0)), WorkerState::kUnhealthy);
  go_on.Notify();
  worker_.Die();  // Its call uses both notifications.
}

TEST_F(WorkerProberTest, StopsWhileItWaitsForAWorkerThatIsNotThere) {
  worker_.Die();
  Start({.timeout = absl::Hours(1)});
  prober_.reset();
  EXPECT_EQ(pool_.state(WorkerId(0)), WorkerState::kUnhealthy);
}

}  // namespace
}  // namespace baton
