// What the router does while nobody is ready, and when too many requests are
// tried again.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"
#include "server/router/router_for_test.h"

namespace baton {
namespace {

using ::grpc::StatusCode;

constexpr uint32_t kNumStreams = 64;

grpc::Status Unavailable() { return {StatusCode::UNAVAILABLE, "scripted"}; }

// One unified worker, and another one that is not the router's at first.
class RouterRetryTest : public ::testing::Test {
 protected:
  RouterRetryTest() {
    worker_.SetDecode(GoodDecode());
    other_.SetDecode(GoodDecode());
    v1::GetWorkerInfoResponse wrong = DemoInfo(v1::WORKER_ROLE_UNIFIED);
    wrong.set_text_hash("another text");
    other_.SetInfo(wrong);
  }
  void StartRouter(Router::Options options) {
    router_ = std::make_unique<RouterForTest>(std::move(options));
    ASSERT_TRUE(WaitFor([&] { return NumWorkers(WorkerState::kReady) == 1; }));
  }
  Router::Options Options() {
    return RouterForTest::Options({&worker_, &other_});
  }
  int NumWorkers(WorkerState state) {
    return router_->router().pool().CountStates()[static_cast<int>(state)];
  }
  // From now on nobody is ready.
  void Die() {
    worker_.Die();
    EXPECT_TRUE(WaitFor([&] { return NumWorkers(WorkerState::kReady) == 0; }));
  }
  void LetTheOtherServe() { other_.SetInfo(DemoInfo(v1::WORKER_ROLE_UNIFIED)); }
  uint32_t num_running() { return router_->router().admission().num_running(); }
  double Refused(const std::string& kind) {
    return router_->Metric(
        "baton_router_retries_refused_total{role=\"router\",kind=\"" + kind +
        "\"}");
  }

  FakeWorker worker_{DemoInfo(v1::WORKER_ROLE_UNIFIED)};
  FakeWorker other_{DemoInfo(v1::WORKER_ROLE_UNIFIED)};
  std::unique_ptr<RouterForTest> router_;
};

// --- Nobody is ready.

TEST_F(RouterRetryTest, ARequestWaitsForAWorkerThatComesSoon) {
  Router::Options options = Options();
  options.worker_wait = absl::Minutes(1);
  StartRouter(std::move(options));
  Die();
  GenerateOutcome outcome;
  std::thread client([&] { outcome = router_->Generate(IdsRequest(3)); });
  EXPECT_TRUE(WaitFor([&] { return num_running() == 1; }));
  LetTheOtherServe();
  client.join();
  EXPECT_EQ(outcome.text, "abc") << outcome.status.error_message();
  EXPECT_EQ(other_.requests().size(), 1u);
}

TEST_F(RouterRetryTest, ARequestWaitsNoLongerThanItIsToldTo) {
  Router::Options options = Options();
  options.worker_wait = absl::Milliseconds(50);
  StartRouter(std::move(options));
  Die();
  const absl::Status status =
      FromGrpcStatus(router_->Generate(IdsRequest(3)).status);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ErrorReason(status), "NO_WORKER");
  EXPECT_TRUE(RetryDelay(status).has_value());
  EXPECT_EQ(num_running(), 0u);
}

TEST_F(RouterRetryTest, ARequestWaitsNoLongerThanItsDeadline) {
  Router::Options options = Options();
  options.worker_wait = absl::Minutes(10);
  StartRouter(std::move(options));
  Die();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(50));
  const auto reader = router_->stub().Generate(&context, IdsRequest(3));
  EXPECT_EQ(ReadAll(reader.get()).status.error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(WaitFor([&] { return num_running() == 0; }));
}

TEST_F(RouterRetryTest, NoMoreRequestsWaitThanTheQueueHolds) {
  Router::Options options = Options();
  options.worker_wait = absl::Minutes(1);
  options.admission = {.max_concurrent_requests = 1, .max_queued_requests = 1};
  StartRouter(std::move(options));
  Die();
  std::atomic<int> num_ok = 0;
  std::vector<std::thread> clients;
  Admission& admission = router_->router().admission();
  for (uint32_t i = 1; i <= 2; ++i) {
    clients.emplace_back(
        [&] { num_ok += router_->Generate(IdsRequest(3)).text == "abc"; });
    EXPECT_TRUE(WaitFor([&] {
      return admission.num_running() + admission.num_waiting() == i;
    }));
  }
  EXPECT_EQ(router_->Generate(IdsRequest(3)).status.error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  LetTheOtherServe();
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_ok, 2);
  EXPECT_EQ(router_->Metric("baton_queue_time_seconds_count{role=\"router\"}"),
            2)
      << "who was refused has not waited";
}

TEST_F(RouterRetryTest, ChecksRequestsAgainstTheLastModelThatItKnew) {
  StartRouter(Options());
  Die();
  EXPECT_EQ(router_->Generate(IdsRequest(5000)).status.error_code(),
            StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  v1::GetModelInfoResponse info;
  EXPECT_TRUE(router_->stub()
                  .GetModelInfo(&context, v1::GetModelInfoRequest(), &info)
                  .ok());
  EXPECT_EQ(info.max_context_tokens(), 4096u);
}

// --- Too many tries again.

TEST_F(RouterRetryTest, TellsTheClientWhenTooManyRequestsAreTriedAgain) {
  worker_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream*) {
    return Unavailable();
  });
  Router::Options options = Options();
  options.retry_budget = {.retry_share = 0, .min_retries = 1};
  StartRouter(std::move(options));
  const absl::Status status =
      FromGrpcStatus(router_->Generate(IdsRequest(3)).status);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ErrorReason(status), "RETRY_BUDGET");
  EXPECT_TRUE(RetryDelay(status).has_value());
  EXPECT_EQ(worker_.requests().size(), 2u);
  EXPECT_EQ(Refused("retry"), 1);
  EXPECT_EQ(Refused("resume"), 0);
  EXPECT_TRUE(
      WaitFor([&] { return router_->router().pool().num_in_flight() == 0; }));
}

TEST_F(RouterRetryTest, WhatALiveWorkerHandsBackCostsNoTry) {
  std::atomic<int> calls = 0;
  worker_.SetDecode([&](const v1::DecodeRequest& request,
                        FakeDecodeStream* stream) {
    return ++calls < 3 ? ToGrpcStatus(WithReason(
                             absl::UnavailableError("draining"), "DRAINING"))
                       : GoodDecode()(request, stream);
  });
  Router::Options options = Options();
  options.retry_budget = {.retry_share = 0, .min_retries = 0, .min_resumes = 0};
  StartRouter(std::move(options));
  EXPECT_EQ(router_->Generate(IdsRequest(3)).text, "abc");
  EXPECT_EQ(calls, 3);
}

// No new try is left, and yet every stream of the dying worker goes on.
TEST_F(RouterRetryTest, EveryStreamOfAWorkerThatDiesGoesOn) {
  worker_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    stream->SendTokens(0, LetterTokens(0, 1));
    EXPECT_TRUE(stream->WaitUntilCancelled());
    return grpc::Status::CANCELLED;
  });
  other_.SetDecode(
      [](const v1::DecodeRequest& decode, FakeDecodeStream* stream) {
        EXPECT_EQ(decode.request().token_ids_size(), 3 + 1);
        stream->SendTokens(1, LetterTokens(1, 2));
        SendFinished(stream, v1::WORKER_FINISH_REASON_LENGTH, 3);
        return grpc::Status::OK;
      });
  Router::Options options = Options();
  options.worker_wait = absl::Minutes(1);
  options.retry_budget = {.retry_share = 0, .min_retries = 0, .min_resumes = 0};
  StartRouter(std::move(options));
  std::atomic<uint32_t> num_ok = 0;
  std::vector<std::thread> clients;
  for (uint32_t i = 0; i < kNumStreams; ++i) {
    clients.emplace_back(
        [&] { num_ok += router_->Generate(IdsRequest(3)).text == "abc"; });
  }
  EXPECT_TRUE(WaitFor([&] {
    return router_->Metric(
               "baton_time_to_first_token_seconds_count{role=\"router\"}") ==
           kNumStreams;
  }));
  worker_.Die();
  LetTheOtherServe();
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_ok, kNumStreams);
  EXPECT_EQ(Refused("resume"), 0);
}

TEST_F(RouterRetryTest, ASampleWithoutATokenGoesOnWithTheOthersOfItsRequest) {
  worker_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    stream->SendTokens(0, LetterTokens(0, 1), /*sample_index=*/0);
    EXPECT_TRUE(stream->WaitUntilCancelled());
    return grpc::Status::CANCELLED;
  });
  other_.SetDecode([](const v1::DecodeRequest& decode, FakeDecodeStream* s) {
    const uint32_t sample = decode.request().sample_index();
    const uint32_t index = decode.request().token_ids_size() - 3;
    EXPECT_EQ(index, sample == 0 ? 1u : 0u);
    s->SendTokens(index, LetterTokens(sample + index, 3 - index), sample);
    SendFinished(s, v1::WORKER_FINISH_REASON_LENGTH, 3, sample);
    return grpc::Status::OK;
  });
  Router::Options options = Options();
  options.worker_wait = absl::Minutes(1);
  options.retry_budget = {.retry_share = 0, .min_retries = 0};
  StartRouter(std::move(options));
  v1::GenerateRequest request = IdsRequest(3);
  request.mutable_sampling()->set_n(2);
  GenerateOutcome outcome;
  std::thread client([&] { outcome = router_->Generate(request); });
  EXPECT_TRUE(WaitFor([&] {
    return router_->Metric(
               "baton_time_to_first_token_seconds_count{role=\"router\"}") == 1;
  }));
  worker_.Die();
  LetTheOtherServe();
  client.join();
  EXPECT_EQ(outcome.text, "abc") << outcome.status.error_message();
  EXPECT_EQ(outcome.samples[1].text, "bcd");
}

TEST_F(RouterRetryTest, AStreamThatIsLostAgainAndAgainEnds) {
  worker_.SetDecode([](const v1::DecodeRequest& decode, FakeDecodeStream* s) {
    const v1::WorkerRequest& request = decode.request();
    const uint32_t index =
        request.token_ids_size() - request.original_prompt_tokens();
    s->SendTokens(index, LetterTokens(index, 1));
    return Unavailable();
  });
  Router::Options options = Options();
  options.retry_budget = {.resumes_per_stream = 2, .min_resumes = 0};
  StartRouter(std::move(options));
  const GenerateOutcome outcome = router_->Generate(IdsRequest(20));
  EXPECT_EQ(ErrorReason(FromGrpcStatus(outcome.status)), "RETRY_BUDGET");
  EXPECT_EQ(outcome.text, "abc");
  EXPECT_EQ(Refused("resume"), 1);
}

}  // namespace
}  // namespace baton
