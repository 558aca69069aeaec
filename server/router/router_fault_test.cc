// What the router does when workers fail, lists are full and requests are bad.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "base/field_error.h"
#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"
#include "server/router/router_for_test.h"

namespace baton {
namespace {

using ::grpc::StatusCode;

grpc::Status Unavailable() { return {StatusCode::UNAVAILABLE, "scripted"}; }

grpc::Status Full() {
  return ToGrpcStatus(WithReason(
      WithRetryDelay(absl::ResourceExhaustedError("full"), absl::Hours(1)),
      "OUT_OF_MEMORY"));
}

class RouterFaultTest : public ::testing::Test {
 protected:
  RouterFaultTest() {
    for (FakeWorker* worker : {&prefill_, &other_prefill_}) {
      worker->SetPrefill(GoodPrefill());
    }
    for (FakeWorker* worker : {&decode_, &other_decode_}) {
      worker->SetDecode(GoodDecode());
    }
  }
  // Waits until all of `workers` are ready.
  void StartRouter(const std::vector<const FakeWorker*>& workers) {
    StartRouter(RouterForTest::Options(workers));
  }
  void StartRouter(Router::Options options) {
    const auto num_workers = static_cast<int>(options.workers.size());
    router_ = std::make_unique<RouterForTest>(std::move(options));
    ASSERT_TRUE(WaitFor(
        [&] { return NumWorkers(WorkerState::kReady) == num_workers; }));
  }
  int NumWorkers(WorkerState state) {
    return router_->router().pool().CountStates()[static_cast<int>(state)];
  }
  bool IsIdle() {
    return router_->router().admission().num_running() == 0 &&
           router_->router().pool().num_in_flight() == 0;
  }
  double Retries(const std::string& reason) {
    return router_->Metric(
        "baton_router_retries_total{role=\"router\",reason=\"" + reason +
        "\"}");
  }
  double RetriesRefused() {
    return router_->Metric(
        "baton_router_retries_refused_total{role="
        "\"router\",kind=\"retry\"}");
  }

  FakeWorker prefill_{DemoInfo(v1::WORKER_ROLE_PREFILL)};
  FakeWorker other_prefill_{DemoInfo(v1::WORKER_ROLE_PREFILL)};
  FakeWorker decode_{DemoInfo(v1::WORKER_ROLE_DECODE)};
  FakeWorker other_decode_{DemoInfo(v1::WORKER_ROLE_DECODE)};
  std::unique_ptr<RouterForTest> router_;
};

TEST_F(RouterFaultTest, TriesAnotherPrefillWorkerWhenOneIsUnavailable) {
  prefill_.SetPrefill([](const v1::WorkerRequest&, FakePrefillStream*) {
    return Unavailable();
  });
  StartRouter({&prefill_, &other_prefill_, &decode_});
  // Least loaded, equals take turns: the first goes to the one that fails.
  const GenerateOutcome outcome = router_->Generate(IdsRequest(3));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.text, "abc");
  ASSERT_EQ(prefill_.requests().size(), 1u);
  ASSERT_EQ(other_prefill_.requests().size(), 1u);
  EXPECT_EQ(prefill_.requests()[0].attempt(), 0u);
  EXPECT_EQ(other_prefill_.requests()[0].attempt(), 1u);
  EXPECT_EQ(prefill_.requests()[0].sampling().seed(),
            other_prefill_.requests()[0].sampling().seed());
  EXPECT_NE(prefill_.requests()[0].id().counter(),
            other_prefill_.requests()[0].id().counter());
  EXPECT_EQ(Retries("prefill_lost"), 1);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterFaultTest, TriesTheOnlyWorkersAgain) {
  std::atomic<int> calls = 0;
  prefill_.SetPrefill([](const v1::WorkerRequest&, FakePrefillStream* stream) {
    SendHandle(stream, "h");
    SendReleased(stream);
    return grpc::Status::OK;
  });
  decode_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        return ++calls < 3 ? Unavailable() : GoodDecode()(request, stream);
      });
  StartRouter({&prefill_, &decode_});
  EXPECT_EQ(router_->Generate(IdsRequest(3)).text, "abc");
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(Retries("decode_lost"), 2);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterFaultTest, GivesUpAfterTheLastRetry) {
  for (FakeWorker* worker : {&prefill_, &other_prefill_}) {
    worker->SetPrefill([](const v1::WorkerRequest&, FakePrefillStream*) {
      return Unavailable();
    });
  }
  StartRouter({&prefill_, &other_prefill_, &decode_});
  const GenerateOutcome outcome = router_->Generate(IdsRequest(3));
  const absl::Status status = FromGrpcStatus(outcome.status);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), "WORKER_LOST");
  EXPECT_TRUE(RetryDelay(status).has_value());
  EXPECT_EQ(prefill_.requests().size() + other_prefill_.requests().size(), 3u);
  EXPECT_EQ(Retries("prefill_lost"), 2);
}

TEST_F(RouterFaultTest, ReleasesOnceWhatARetryFindsNoWorkersFor) {
  prefill_.SetPrefill([&](const v1::WorkerRequest&, FakePrefillStream*) {
    v1::GetWorkerInfoResponse other = DemoInfo(v1::WORKER_ROLE_PREFILL);
    other.set_text_hash("another");
    prefill_.SetInfo(other);
    EXPECT_TRUE(
        WaitFor([&] { return NumWorkers(WorkerState::kRefused) == 1; }));
    return Unavailable();
  });
  Router::Options options = RouterForTest::Options({&prefill_, &decode_});
  options.worker_wait = absl::Milliseconds(50);
  StartRouter(std::move(options));
  const absl::Status status =
      FromGrpcStatus(router_->Generate(IdsRequest(3)).status);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), "NO_WORKER");
  EXPECT_TRUE(RetryDelay(status).has_value());
  EXPECT_EQ(Retries("prefill_lost"), 1);
  EXPECT_EQ(router_->router().pool().num_in_flight(), 0);
}

TEST_F(RouterFaultTest, WaitsForTheOnlyWorkerToComeBack) {
  absl::Notification called;
  prefill_.SetPrefill([&](const v1::WorkerRequest&, FakePrefillStream* stream) {
    called.Notify();
    EXPECT_TRUE(stream->WaitUntilCancelled());
    return grpc::Status::CANCELLED;
  });
  Router::Options options = RouterForTest::Options({&prefill_, &decode_});
  options.worker_wait = absl::Minutes(1);
  options.max_retries = 1;
  StartRouter(std::move(options));
  GenerateOutcome outcome;
  std::thread client([&] { outcome = router_->Generate(IdsRequest(3)); });
  called.WaitForNotification();
  prefill_.Die();
  EXPECT_TRUE(
      WaitFor([&] { return NumWorkers(WorkerState::kUnhealthy) == 1; }));
  FakeWorker again(DemoInfo(v1::WORKER_ROLE_PREFILL), prefill_.address());
  again.SetPrefill(GoodPrefill());
  client.join();
  EXPECT_EQ(outcome.text, "abc") << outcome.status.error_message();
  EXPECT_EQ(again.requests().size(), 1u);
  EXPECT_EQ(Retries("prefill_lost"), 1);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterFaultTest, NeverRetriesAnErrorOfTheRequest) {
  prefill_.SetPrefill([](const v1::WorkerRequest&, FakePrefillStream*) {
    return grpc::Status(StatusCode::RESOURCE_EXHAUSTED, "full");
  });
  StartRouter({&prefill_, &decode_});
  EXPECT_EQ(router_->Generate(IdsRequest(3)).status.error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(prefill_.requests().size(), 1u);
}

// --- Workers that are full.

TEST_F(RouterFaultTest, AsksAnotherPrefillWorkerWhenOneIsFull) {
  prefill_.SetPrefill(
      [](const v1::WorkerRequest&, FakePrefillStream*) { return Full(); });
  StartRouter({&prefill_, &other_prefill_, &decode_});
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(router_->Generate(IdsRequest(3)).text, "abc");
  }
  // The first went there, the others not: it was to be left alone.
  EXPECT_EQ(prefill_.requests().size(), 1u);
  EXPECT_EQ(other_prefill_.requests().size(), 4u);
  EXPECT_EQ(Retries("busy"), 1);
  EXPECT_EQ(NumWorkers(WorkerState::kReady), 3);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterFaultTest, AsksAnotherDecodeWorkerWhenOneIsFull) {
  decode_.SetDecode(
      [](const v1::DecodeRequest&, FakeDecodeStream*) { return Full(); });
  StartRouter({&prefill_, &decode_, &other_decode_});
  EXPECT_EQ(router_->Generate(IdsRequest(3)).text, "abc");
  EXPECT_EQ(router_->Generate(IdsRequest(3)).text, "abc");
  EXPECT_EQ(decode_.requests().size(), 1u);
  EXPECT_EQ(other_decode_.requests().size(), 2u);
  EXPECT_EQ(Retries("busy"), 1);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterFaultTest, RefusesWhenAllWorkersAreFullAndAsksEachOnce) {
  for (FakeWorker* worker : {&prefill_, &other_prefill_}) {
    worker->SetPrefill(
        [](const v1::WorkerRequest&, FakePrefillStream*) { return Full(); });
  }
  Router::Options options =
      RouterForTest::Options({&prefill_, &other_prefill_, &decode_});
  options.worker_wait = absl::Minutes(10);
  options.max_retries = 1;
  StartRouter(std::move(options));
  for (size_t i = 1; i <= 2; ++i) {
    const absl::Status status =
        FromGrpcStatus(router_->Generate(IdsRequest(3)).status);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(ErrorReason(status), "OUT_OF_MEMORY");
    EXPECT_EQ(RetryDelay(status), absl::Hours(1));
    EXPECT_EQ(prefill_.requests().size(), i);
    EXPECT_EQ(other_prefill_.requests().size(), i);
  }
  EXPECT_EQ(Retries("busy"), 2);
  EXPECT_TRUE(decode_.requests().empty());
  EXPECT_EQ(router_->router().pool().num_ejected(), 0);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterFaultTest, TheOnlyWorkerThatIsFullCostsNoTry) {
  prefill_.SetPrefill(
      [](const v1::WorkerRequest&, FakePrefillStream*) { return Full(); });
  Router::Options options = RouterForTest::Options({&prefill_, &decode_});
  options.retry_budget = {.retry_share = 0, .min_retries = 0};
  StartRouter(std::move(options));
  EXPECT_EQ(router_->Generate(IdsRequest(3)).status.error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(prefill_.requests().size(), 1u);
  EXPECT_EQ(Retries("busy") + RetriesRefused(), 0);
}

TEST_F(RouterFaultTest, AFullWorkerCostsATryOfAllRequests) {
  prefill_.SetPrefill(
      [](const v1::WorkerRequest&, FakePrefillStream*) { return Full(); });
  Router::Options options =
      RouterForTest::Options({&prefill_, &other_prefill_, &decode_});
  options.retry_budget = {.retry_share = 0, .min_retries = 0};
  StartRouter(std::move(options));
  const absl::Status status =
      FromGrpcStatus(router_->Generate(IdsRequest(3)).status);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(RetryDelay(status).has_value());
  EXPECT_TRUE(other_prefill_.requests().empty());
  EXPECT_EQ(RetriesRefused(), 1);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterFaultTest, RetriesWhenThePrefillWorkerDiesBeforeRelease) {
  absl::Notification pulling;
  prefill_.SetPrefill([&](const v1::WorkerRequest&, FakePrefillStream* stream) {
    SendHandle(stream, "h");
    pulling.WaitForNotification();
    return Unavailable();
  });
  decode_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        if (request.request().attempt() > 0) {
          return GoodDecode()(request, stream);
        }
        pulling.Notify();
        EXPECT_TRUE(stream->WaitUntilCancelled());
        return grpc::Status::CANCELLED;
      });
  StartRouter({&prefill_, &other_prefill_, &decode_});
  EXPECT_EQ(router_->Generate(IdsRequest(3)).text, "abc");
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterFaultTest, TakesOtherWorkersWhenTheKvWasLost) {
  std::atomic<int> first_handles = 0;
  prefill_.SetPrefill([&](const v1::WorkerRequest&, FakePrefillStream* stream) {
    ++first_handles;
    SendHandle(stream, "h");
    EXPECT_TRUE(stream->WaitUntilCancelled());
    return grpc::Status::CANCELLED;
  });
  decode_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream*) {
    return grpc::Status(StatusCode::ABORTED, "lost");
  });
  StartRouter({&prefill_, &other_prefill_, &decode_, &other_decode_});
  EXPECT_EQ(router_->Generate(IdsRequest(3)).text, "abc");
  EXPECT_EQ(first_handles, 1);
  EXPECT_EQ(other_prefill_.requests().size(), 1u);
  EXPECT_EQ(other_decode_.requests().size(), 1u);
  EXPECT_EQ(Retries("kv_lost"), 1);
  EXPECT_EQ(NumWorkers(WorkerState::kReady), 4) << "nobody is suspect";
}

TEST_F(RouterFaultTest, DoesNotMindAPrefillThatFailsAfterDecodeHasSpoken) {
  absl::Notification decode_spoke;
  prefill_.SetPrefill([&](const v1::WorkerRequest&, FakePrefillStream* stream) {
    SendHandle(stream, "h");
    decode_spoke.WaitForNotification();
    return Unavailable();
  });
  decode_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        stream->SendTokens(0, LetterTokens(0, 1));
        EXPECT_TRUE(WaitFor([&] {
          return router_->Metric(
                     "baton_time_to_first_token_seconds_"
                     "count{role=\"router\"}") == 1;
        }));
        decode_spoke.Notify();
        return GoodDecode()(request, stream);
      });
  StartRouter({&prefill_, &decode_});
  EXPECT_EQ(router_->Generate(IdsRequest(4)).text, "abcd");
}

TEST_F(RouterFaultTest, LeavesAWorkerThatDied) {
  StartRouter({&prefill_, &other_prefill_, &decode_});
  prefill_.Die();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(router_->Generate(IdsRequest(2)).text, "ab");
  }
  EXPECT_EQ(other_prefill_.requests().size(), 4u);
  EXPECT_TRUE(
      WaitFor([&] { return NumWorkers(WorkerState::kUnhealthy) == 1; }));
}

TEST_F(RouterFaultTest, IsUnavailableWithoutAWorkerAndServesWhenOneComes) {
  FakeWorker late(DemoInfo(v1::WORKER_ROLE_UNIFIED));
  v1::GetWorkerInfoResponse wrong = DemoInfo(v1::WORKER_ROLE_UNIFIED);
  wrong.set_text_hash("another text");
  late.SetInfo(wrong);
  late.SetDecode(GoodDecode());
  router_ = std::make_unique<RouterForTest>(RouterForTest::Options({&late}));
  EXPECT_TRUE(WaitFor([&] { return NumWorkers(WorkerState::kRefused) == 1; }));
  const absl::Status status =
      FromGrpcStatus(router_->Generate(IdsRequest(2)).status);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), "NO_WORKER");
  EXPECT_TRUE(RetryDelay(status).has_value());
  late.SetInfo(DemoInfo(v1::WORKER_ROLE_UNIFIED));
  EXPECT_TRUE(WaitFor([&] { return NumWorkers(WorkerState::kReady) == 1; }));
  EXPECT_EQ(router_->Generate(IdsRequest(2)).text, "ab");
}

TEST_F(RouterFaultTest, SaysThatItDrainsToWhatItCuts) {
  decode_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    EXPECT_TRUE(stream->WaitUntilCancelled());
    return grpc::Status::CANCELLED;
  });
  StartRouter({&prefill_, &decode_});
  grpc::ClientContext context;
  const auto reader = router_->stub().Generate(&context, IdsRequest(9));
  EXPECT_TRUE(WaitFor([&] { return decode_.num_open() == 1; }));
  router_->gate().Close();
  router_->gate().Cut();
  const absl::Status status = FromGrpcStatus(ReadAll(reader.get()).status);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), "DRAINING");
  EXPECT_TRUE(RetryDelay(status).has_value());
  EXPECT_TRUE(WaitFor([&] {
    return IsIdle() && decode_.num_open() == 0 && router_->gate().inside() == 0;
  }));
}

// --- The queue.

TEST_F(RouterFaultTest, QueuesUpToTheBoundAndRefusesTheRest) {
  absl::Notification go_on;
  decode_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        go_on.WaitForNotification();
        return GoodDecode()(request, stream);
      });
  Router::Options options = RouterForTest::Options({&prefill_, &decode_});
  options.admission = {.max_concurrent_requests = 1, .max_queued_requests = 2};
  StartRouter(std::move(options));
  std::vector<std::thread> clients;
  std::atomic<int> num_ok = 0;
  Admission& admission = router_->router().admission();
  for (uint32_t i = 0; i < 3; ++i) {
    clients.emplace_back(
        [&] { num_ok += router_->Generate(IdsRequest(3)).text == "abc"; });
    EXPECT_TRUE(WaitFor([&] {
      return admission.num_running() + admission.num_waiting() == i + 1;
    }));
  }
  const absl::Status status =
      FromGrpcStatus(router_->Generate(IdsRequest(3)).status);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(status), "QUEUE_FULL");
  EXPECT_TRUE(RetryDelay(status).has_value());
  go_on.Notify();
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_ok, 3);
}

TEST_F(RouterFaultTest, LetsAQueuedRequestGo) {
  decode_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    EXPECT_TRUE(stream->WaitUntilCancelled());
    return grpc::Status::CANCELLED;
  });
  Router::Options options = RouterForTest::Options({&prefill_, &decode_});
  options.admission.max_concurrent_requests = 1;
  StartRouter(std::move(options));
  Admission& admission = router_->router().admission();
  grpc::ClientContext running;
  const auto first = router_->stub().Generate(&running, IdsRequest(9));
  EXPECT_TRUE(WaitFor([&] { return admission.num_running() == 1; }));
  EXPECT_TRUE(WaitFor([&] { return prefill_.requests().size() == 1; }));
  grpc::ClientContext queued;
  const auto second = router_->stub().Generate(&queued, IdsRequest(9));
  EXPECT_TRUE(WaitFor([&] { return admission.num_waiting() == 1; }));
  queued.TryCancel();
  EXPECT_EQ(ReadAll(second.get()).status.error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(WaitFor([&] { return admission.num_waiting() == 0; }));
  EXPECT_EQ(prefill_.requests().size(), 1u);
  running.TryCancel();
  EXPECT_EQ(ReadAll(first.get()).status.error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterFaultTest, RefusesALiveClientRequestIdAndTakesItAfterwards) {
  absl::Notification go_on;
  decode_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        go_on.WaitForNotification();
        return GoodDecode()(request, stream);
      });
  StartRouter({&prefill_, &decode_});
  v1::GenerateRequest request = IdsRequest(3);
  request.set_client_request_id("twice\n");
  std::thread client(
      [&] { EXPECT_EQ(router_->Generate(request).text, "abc"); });
  EXPECT_TRUE(WaitFor(
      [&] { return router_->router().admission().num_running() == 1; }));
  EXPECT_EQ(router_->Generate(request).status.error_code(),
            StatusCode::ALREADY_EXISTS);
  go_on.Notify();
  client.join();
  EXPECT_EQ(router_->Generate(request).text, "abc");
}

TEST_F(RouterFaultTest, ServesManyClientsAtOnceAndLeavesNothingBehind) {
  constexpr int kClients = 32;
  Router::Options options = RouterForTest::Options(
      {&prefill_, &other_prefill_, &decode_, &other_decode_});
  options.admission.max_concurrent_requests = 8;
  StartRouter(std::move(options));
  std::atomic<int> num_ok = 0;
  std::vector<std::thread> clients;
  clients.reserve(kClients);
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const uint32_t length = 1 + i * 3;
      const GenerateOutcome outcome = router_->Generate(IdsRequest(length));
      num_ok +=
          outcome.status.ok() && outcome.token_ids == LetterTokens(0, length);
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_ok, kClients);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

}  // namespace
}  // namespace baton
