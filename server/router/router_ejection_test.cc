// A router that leaves out workers that fail what they are sent, and sends
// prompts where their prefixes are: real gRPC, scripted workers.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/router/prefix_table.h"
#include "server/router/router_for_test.h"
#include "server/router/routing_policy.h"

namespace baton {
namespace {

using ::grpc::StatusCode;

class RouterEjectionTest : public ::testing::Test {
 protected:
  RouterEjectionTest() {
    for (FakeWorker* worker : {&worker_, &other_}) {
      worker->SetDecode(GoodDecode());
    }
  }
  void StartRouter(Router::Options options) {
    router_ = std::make_unique<RouterForTest>(std::move(options));
    ASSERT_TRUE(WaitFor([&] {
      return router_->router()
                 .pool()
                 .CountStates()[static_cast<int>(WorkerState::kReady)] == 2;
    }));
  }
  Router::Options Options() {
    Router::Options options = RouterForTest::Options({&worker_, &other_});
    options.ejection = {.failures_in_a_row = 2,
                        .first_ejection = absl::Milliseconds(50)};
    return options;
  }
  double Ejections(const std::string& reason) {
    return router_->Metric(
        "baton_router_ejections_total{role=\"router\",reason=\"" + reason +
        "\"}");
  }
  double Ejected() {
    return router_->Metric("baton_router_ejected_workers{role=\"router\"}");
  }
  int num_requests(const FakeWorker& worker) {
    return static_cast<int>(worker.requests().size());
  }

  FakeWorker worker_{DemoInfo(v1::WORKER_ROLE_UNIFIED)};
  FakeWorker other_{DemoInfo(v1::WORKER_ROLE_UNIFIED)};
  std::unique_ptr<RouterForTest> router_;
};

TEST_F(RouterEjectionTest, LeavesOutAWorkerThatFailsAndTakesItBack) {
  std::atomic<bool> fails = true;
  worker_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        return fails ? grpc::Status(StatusCode::INTERNAL, "scripted")
                     : GoodDecode()(request, stream);
      });
  Router::Options options = Options();
  options.ejection.first_ejection = absl::Minutes(5);
  StartRouter(std::move(options));
  EXPECT_TRUE(WaitFor([&] {
    router_->Generate(IdsRequest(1));
    return Ejections("in_a_row") == 1;
  }));
  EXPECT_EQ(Ejected(), 1);
  const int before = num_requests(worker_);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(router_->Generate(IdsRequest(2)).text, "ab");
  }
  EXPECT_EQ(num_requests(worker_), before);
  // Another process at its address need not wait for so long.
  fails = false;
  v1::GetWorkerInfoResponse again = DemoInfo(v1::WORKER_ROLE_UNIFIED);
  again.set_incarnation(2);
  worker_.SetInfo(again);
  EXPECT_TRUE(WaitFor([&] {
    router_->Generate(IdsRequest(2));
    return num_requests(worker_) > before;
  }));
  EXPECT_TRUE(WaitFor([&] { return Ejected() == 0; }));
}

TEST_F(RouterEjectionTest, TriesItAgainUntilATrialIsAnswered) {
  absl::Notification fails_again;
  std::atomic<int> num_failed = 0;
  worker_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        if (fails_again.HasBeenNotified()) return GoodDecode()(request, stream);
        if (++num_failed == 5) fails_again.Notify();
        return grpc::Status(StatusCode::INTERNAL, "scripted");
      });
  StartRouter(Options());
  EXPECT_TRUE(WaitFor([&] {
    router_->Generate(IdsRequest(2));
    return fails_again.HasBeenNotified() && Ejected() == 0;
  }));
  EXPECT_EQ(Ejections("in_a_row"), 1);
  EXPECT_EQ(Ejections("trial"), 3);
}

TEST_F(RouterEjectionTest, EjectsNobodyForWhatAClientDoes) {
  worker_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream*) {
    return grpc::Status(StatusCode::RESOURCE_EXHAUSTED, "full");
  });
  StartRouter(Options());
  for (int i = 0; i < 10; ++i) router_->Generate(IdsRequest(1));
  EXPECT_GE(num_requests(worker_), 5);
  EXPECT_EQ(Ejected(), 0);
}

// --- Prefix affinity.

// `token` for so many blocks.
v1::GenerateRequest PromptOf(uint32_t token, size_t num_blocks) {
  v1::GenerateRequest request = IdsRequest(2);
  auto* const ids = request.mutable_prompt()->mutable_token_ids();
  ids->clear_ids();
  for (size_t i = 0; i < num_blocks * kTokensPerPrefixBlock + 1; ++i) {
    ids->add_ids(token);
  }
  return request;
}

class RouterAffinityTest : public RouterEjectionTest {
 protected:
  void StartRouter() {
    Router::Options options = Options();
    options.make_policy = [](v1::WorkerRole) {
      return MakeRoutingPolicy("prefix_affinity");
    };
    RouterEjectionTest::StartRouter(std::move(options));
  }
  // Sends it, and waits until the pool knows that it is over.
  void Send(const v1::GenerateRequest& request) {
    EXPECT_EQ(router_->Generate(request).text, "ab");
    EXPECT_TRUE(
        WaitFor([&] { return router_->router().pool().num_in_flight() == 0; }));
  }
};

TEST_F(RouterAffinityTest, SendsConversationsWhereTheyBegan) {
  StartRouter();
  for (size_t turn = 1; turn <= 4; ++turn) {
    Send(PromptOf(5, turn));
    Send(PromptOf(6, turn));
  }
  ASSERT_EQ(num_requests(worker_), 4);
  ASSERT_EQ(num_requests(other_), 4);
  for (const v1::WorkerRequest& request : worker_.requests()) {
    EXPECT_EQ(request.token_ids(0), worker_.requests()[0].token_ids(0));
  }
}

TEST_F(RouterAffinityTest, ATenantsPrefixIsNotAnothers) {
  StartRouter();
  for (int i = 0; i < 4; ++i) {
    v1::GenerateRequest request = PromptOf(5, 4);
    request.mutable_cache()->set_salt(i % 2 == 0 ? "one" : "two");
    Send(request);
  }
  EXPECT_EQ(num_requests(worker_), 2);
  EXPECT_EQ(num_requests(other_), 2);
}

TEST_F(RouterAffinityTest, ABypassingRequestHasNoAffinityAndLeavesNone) {
  StartRouter();
  v1::GenerateRequest bypassing = PromptOf(5, 4);
  bypassing.mutable_cache()->set_bypass(true);
  Send(bypassing);
  Send(bypassing);
  EXPECT_EQ(num_requests(worker_), 1) << "in turns";
  EXPECT_EQ(num_requests(other_), 1);
  Send(PromptOf(5, 4));
  Send(bypassing);
  EXPECT_EQ(num_requests(worker_), 2);
  EXPECT_EQ(num_requests(other_), 2);
}

}  // namespace
}  // namespace baton
