// The router as its clients and workers see it: real gRPC, scripted workers.
#include "server/router/router.h"

#include <prometheus/registry.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"
#include "server/router/router_for_test.h"
#include "server/router/service_times.h"

namespace baton {
namespace {

using ::grpc::StatusCode;

// One prefill and one decode worker that do as they should.
class RouterPairTest : public ::testing::Test {
 protected:
  RouterPairTest() {
    prefill_.SetPrefill(GoodPrefill());
    decode_.SetDecode(GoodDecode());
  }
  void StartRouter() {
    StartRouter(RouterForTest::Options({&prefill_, &decode_}));
  }
  void StartRouter(Router::Options options) {
    router_ = std::make_unique<RouterForTest>(std::move(options));
    router_->router().pool().WaitUntilReady();
  }
  // Nothing of any request is left, here or at the workers.
  bool IsIdle() {
    return prefill_.num_open() == 0 && decode_.num_open() == 0 &&
           router_->router().admission().num_running() == 0 &&
           router_->router().admission().num_waiting() == 0 &&
           router_->router().pool().num_in_flight() == 0;
  }

  FakeWorker prefill_{DemoInfo(v1::WORKER_ROLE_PREFILL)};
  FakeWorker decode_{DemoInfo(v1::WORKER_ROLE_DECODE)};
  std::unique_ptr<RouterForTest> router_;
};

TEST_F(RouterPairTest, StreamsTextThroughPrefillAndDecode) {
  StartRouter();
  const GenerateOutcome outcome = router_->Generate(IdsRequest(5));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.token_ids, LetterTokens(0, 5));
  EXPECT_EQ(outcome.logprobs, (std::vector<float>{0, -1, -2, -3, -4}));
  EXPECT_EQ(outcome.text, "abcde");
  ASSERT_TRUE(outcome.finished.has_value());
  EXPECT_EQ(outcome.finished->finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(outcome.finished->usage().prompt_tokens(), 3u);
  EXPECT_EQ(outcome.finished->usage().completion_tokens(), 5u);
  EXPECT_EQ(outcome.finished->usage().cached_tokens(), 1u);
  EXPECT_EQ(outcome.finished->fingerprint(), "fingerprint-1");
  EXPECT_EQ(outcome.finished->timing().prefill_seconds(), 0.25);
  EXPECT_EQ(outcome.finished->timing().kv_transfer_seconds(), 0.0625);
  EXPECT_EQ(outcome.finished->timing().kv_transfer_bytes(), 4096u);
  EXPECT_GE(outcome.finished->timing().queue_seconds(), 0.625);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterPairTest, TellsBothWorkersTheSameRequest) {
  StartRouter();
  v1::GenerateRequest request = IdsRequest(2);
  request.mutable_sampling()->set_seed(77);
  request.mutable_sampling()->set_top_k(5);
  request.mutable_stopping()->add_stop_token_ids(9);
  ASSERT_TRUE(router_->Generate(request).status.ok());
  ASSERT_EQ(prefill_.requests().size(), 1u);
  ASSERT_EQ(decode_.requests().size(), 1u);
  const v1::WorkerRequest sent = prefill_.requests()[0];
  EXPECT_EQ(sent.SerializeAsString(),
            decode_.requests()[0].SerializeAsString());
  EXPECT_EQ(sent.token_ids_size(), 3);
  EXPECT_EQ(sent.original_prompt_tokens(), 3u);
  EXPECT_EQ(sent.sampling().seed(), 77u);
  EXPECT_EQ(sent.sampling().top_k(), 5u);
  EXPECT_FLOAT_EQ(sent.sampling().top_p(), 0.95f) << "generation_config.json's";
  ASSERT_EQ(sent.stop_token_ids_size(), 2);
  EXPECT_EQ(sent.stop_token_ids(0), 1u) << "EOS";
  EXPECT_EQ(sent.stop_token_ids(1), 9u);
  EXPECT_EQ(sent.num_eos_token_ids(), 1u);
  EXPECT_EQ(sent.max_tokens(), 2u);
}

TEST_F(RouterPairTest, PassesTheHandleOnBeforeThePromptIsComputed) {
  absl::Notification decode_began;
  prefill_.SetPrefill([&](const v1::WorkerRequest&, FakePrefillStream* stream) {
    SendHandle(stream, "opaque");
    decode_began.WaitForNotification();
    stream->SendTokens(0, LetterTokens(0, 1));
    SendReleased(stream);
    return grpc::Status::OK;
  });
  std::string handle;
  decode_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        handle = request.kv_handle();
        decode_began.Notify();
        return GoodDecode()(request, stream);
      });
  StartRouter();
  EXPECT_EQ(router_->Generate(IdsRequest(3)).text, "abc");
  EXPECT_EQ(handle, "opaque");
}

TEST_F(RouterPairTest, ShowsThePrefillServersTokenBeforeTheDecodeServerSpeaks) {
  absl::Notification client_has_token;
  prefill_.SetPrefill([&](const v1::WorkerRequest&, FakePrefillStream* stream) {
    SendHandle(stream, "h");
    stream->SendTokens(0, LetterTokens(0, 1));
    client_has_token.WaitForNotification();
    SendReleased(stream);
    return grpc::Status::OK;
  });
  decode_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        client_has_token.WaitForNotification();
        return GoodDecode()(request, stream);
      });
  StartRouter();
  grpc::ClientContext context;
  const auto reader = router_->stub().Generate(&context, IdsRequest(3));
  v1::GenerateResponse first;
  ASSERT_TRUE(reader->Read(&first));
  EXPECT_EQ(first.chunk().text(), "a");
  client_has_token.Notify();
  v1::GenerateResponse next;
  ASSERT_TRUE(reader->Read(&next));
  EXPECT_EQ(next.chunk().first_token_index(), 1u) << "token 0 came twice";
  while (reader->Read(&next)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(RouterPairTest, RefusesAGap) {
  decode_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    stream->SendTokens(0, LetterTokens(0, 2));
    stream->SendTokens(3, LetterTokens(3, 1));
    EXPECT_TRUE(stream->WaitUntilCancelled());
    return grpc::Status::CANCELLED;
  });
  StartRouter();
  const GenerateOutcome outcome = router_->Generate(IdsRequest(9));
  EXPECT_EQ(outcome.status.error_code(), StatusCode::INTERNAL);
  EXPECT_FALSE(outcome.finished.has_value());
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterPairTest, IgnoresChunksOfAnotherAttempt) {
  decode_.SetDecode(
      [](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        v1::DecodeResponse stale;
        stale.mutable_chunk()->set_attempt(7);
        stale.mutable_chunk()->set_first_token_index(1);
        stale.mutable_chunk()->add_token_ids(LetterToken(20));
        stale.mutable_chunk()->add_logprobs(0);
        stream->Send(stale);
        return GoodDecode()(request, stream);
      });
  StartRouter();
  EXPECT_EQ(router_->Generate(IdsRequest(3)).text, "abc");
}

TEST_F(RouterPairTest, EndsAPrefillThatStaysOpenAfterDecodeHasSpoken) {
  std::atomic<bool> was_cancelled = false;
  prefill_.SetPrefill([&](const v1::WorkerRequest&, FakePrefillStream* stream) {
    SendHandle(stream, "h");
    was_cancelled = stream->WaitUntilCancelled();
    return grpc::Status::CANCELLED;
  });
  StartRouter();
  const GenerateOutcome outcome = router_->Generate(IdsRequest(3));
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.text, "abc");
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
  EXPECT_TRUE(was_cancelled);
}

TEST_F(RouterPairTest, EndsAtAStopStringAndAbortsTheWorker) {
  decode_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    for (uint32_t i = 0; i < 8; ++i) stream->SendTokens(i, LetterTokens(i, 1));
    EXPECT_TRUE(stream->WaitUntilCancelled());
    return grpc::Status::CANCELLED;
  });
  StartRouter();
  v1::GenerateRequest request = IdsRequest(100);
  request.mutable_stopping()->add_stop_strings("cde");
  const GenerateOutcome outcome = router_->Generate(request);
  ASSERT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.text, "ab");
  EXPECT_EQ(outcome.token_ids, LetterTokens(0, 5));
  EXPECT_EQ(outcome.finished->finish_reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(outcome.finished->stop_string(), "cde");
  EXPECT_EQ(outcome.finished->usage().completion_tokens(), 5u);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterPairTest, GivesTheClientsDeadlineToBothWorkers) {
  std::atomic<bool> prefill_has_it = false;
  std::atomic<bool> decode_has_it = false;
  const auto deadline =
      std::chrono::system_clock::now() + std::chrono::seconds(40);
  const auto is_it = [deadline](std::chrono::system_clock::time_point given) {
    return given > deadline - std::chrono::seconds(5) &&
           given < deadline + std::chrono::seconds(5);
  };
  prefill_.SetPrefill(
      [&](const v1::WorkerRequest& request, FakePrefillStream* stream) {
        prefill_has_it = is_it(stream->context()->deadline());
        return GoodPrefill()(request, stream);
      });
  decode_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        decode_has_it = is_it(stream->context()->deadline());
        return GoodDecode()(request, stream);
      });
  StartRouter();
  grpc::ClientContext context;
  context.set_deadline(deadline);
  const auto reader = router_->stub().Generate(&context, IdsRequest(2));
  EXPECT_TRUE(ReadAll(reader.get()).status.ok());
  EXPECT_TRUE(prefill_has_it);
  EXPECT_TRUE(decode_has_it);
}

TEST_F(RouterPairTest, WorkersHaveWhatIsLeftOfTheDeadlineAfterTheQueue) {
  absl::Notification go_on;
  std::atomic<int64_t> given_ms = 0;
  prefill_.SetPrefill(
      [&](const v1::WorkerRequest& request, FakePrefillStream* stream) {
        given_ms = absl::ToInt64Milliseconds(absl::FromChrono(
            stream->context()->deadline() - std::chrono::system_clock::now()));
        return GoodPrefill()(request, stream);
      });
  decode_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        go_on.WaitForNotification();
        return GoodDecode()(request, stream);
      });
  Router::Options options = RouterForTest::Options({&prefill_, &decode_});
  options.admission.max_concurrent_requests = 1;
  StartRouter(std::move(options));
  Admission& admission = router_->router().admission();
  grpc::ClientContext running;
  const auto first = router_->stub().Generate(&running, IdsRequest(2));
  EXPECT_TRUE(WaitFor([&] { return prefill_.requests().size() == 1; }));
  grpc::ClientContext queued;
  const auto deadline =
      std::chrono::system_clock::now() + std::chrono::seconds(30);
  queued.set_deadline(deadline);
  const auto second = router_->stub().Generate(&queued, IdsRequest(2));
  EXPECT_TRUE(WaitFor([&] { return admission.num_waiting() == 1; }));
  const auto arrived = std::chrono::system_clock::now();
  EXPECT_TRUE(WaitFor([&] {
    return std::chrono::system_clock::now() >
           arrived + std::chrono::milliseconds(600);
  }));
  const auto turn = std::chrono::system_clock::now();
  go_on.Notify();
  EXPECT_TRUE(ReadAll(first.get()).status.ok());
  EXPECT_TRUE(ReadAll(second.get()).status.ok());
  // gRPC rounds up, by less than half a second here.
  EXPECT_LT(given_ms, absl::ToInt64Milliseconds(absl::FromChrono(
                          deadline - turn + std::chrono::milliseconds(500))));
  EXPECT_GT(given_ms, 0);
}

TEST_F(RouterPairTest, AWorkersDeadlineComesFirstAndTheClientHearsOfItsTokens) {
  decode_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    stream->SendTokens(0, LetterTokens(0, 3));
    EXPECT_TRUE(stream->WaitUntilCancelled());
    return grpc::Status::CANCELLED;
  });
  StartRouter();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(400));
  const auto reader = router_->stub().Generate(&context, IdsRequest(9));
  const GenerateOutcome outcome = ReadAll(reader.get());
  EXPECT_EQ(outcome.status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(outcome.token_ids, LetterTokens(0, 3));
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
  std::cerr << "told: " << outcome.status.error_message() << '\n';
}

TEST_F(RouterPairTest, RefusesAtOnceWhoseDeadlineNoPromptHasMetLately) {
  StartRouter();
  ServiceTimes& times = router_->router().service_times();
  const absl::Time now = router_->router().clock().Now();
  for (size_t i = 0; i < ServiceTimes::kMinSamples; ++i) {
    times.OnPrefilled(3, absl::Seconds(600), now);
  }
  grpc::ClientContext short_one;
  short_one.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(300));
  const auto refused = router_->stub().Generate(&short_one, IdsRequest(2));
  const absl::Status status = FromGrpcStatus(ReadAll(refused.get()).status);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(ErrorReason(status), "PROMPT_TOO_LONG");
  EXPECT_EQ(prefill_.requests().size(), 0u);
  EXPECT_EQ(router_->Metric("baton_router_deadline_refusals_total{"
                            "role=\"router\",reason=\"PROMPT_TOO_LONG\"}"),
            1);
  // No deadline, or enough time: as ever.
  grpc::ClientContext endless;
  const auto any = router_->stub().Generate(&endless, IdsRequest(2));
  EXPECT_TRUE(ReadAll(any.get()).status.ok());
  grpc::ClientContext long_one;
  long_one.set_deadline(std::chrono::system_clock::now() +
                        std::chrono::seconds(900));
  const auto served = router_->stub().Generate(&long_one, IdsRequest(2));
  EXPECT_TRUE(ReadAll(served.get()).status.ok());
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterPairTest, RefusesAtOnceWhoWouldBeLateByTheQueueAlone) {
  absl::Notification go_on;
  decode_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        go_on.WaitForNotification();
        return GoodDecode()(request, stream);
      });
  Router::Options options = RouterForTest::Options({&prefill_, &decode_});
  options.admission.max_concurrent_requests = 1;
  StartRouter(std::move(options));
  ServiceTimes& times = router_->router().service_times();
  for (size_t i = 0; i < ServiceTimes::kMinSamples; ++i) {
    times.OnServed(absl::Seconds(600), router_->router().clock().Now());
  }
  Admission& admission = router_->router().admission();
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> calls;
  const auto start = [&] {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    contexts.back()->set_deadline(std::chrono::system_clock::now() +
                                  std::chrono::seconds(300));
    calls.push_back(
        router_->stub().Generate(contexts.back().get(), IdsRequest(2)));
  };
  start();
  EXPECT_TRUE(WaitFor([&] { return admission.num_running() == 1; }));
  start();  // May be next in no time.
  EXPECT_TRUE(WaitFor([&] { return admission.num_waiting() == 1; }));
  start();
  const absl::Status status =
      FromGrpcStatus(ReadAll(calls.back().get()).status);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(ErrorReason(status), "QUEUE_TOO_LONG");
  EXPECT_EQ(RetryDelay(status), absl::Seconds(600));
  go_on.Notify();
  EXPECT_TRUE(ReadAll(calls[0].get()).status.ok());
  EXPECT_TRUE(ReadAll(calls[1].get()).status.ok());
}

TEST_F(RouterPairTest, EndsEverythingWhenTheDeadlinePasses) {
  decode_.SetDecode([](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    EXPECT_TRUE(stream->WaitUntilCancelled());
    return grpc::Status::CANCELLED;
  });
  StartRouter();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(200));
  const auto reader = router_->stub().Generate(&context, IdsRequest(2));
  EXPECT_EQ(ReadAll(reader.get()).status.error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
  EXPECT_EQ(router_->Metric("baton_requests_total{role=\"router\","
                            "outcome=\"deadline_exceeded\"}"),
            1);
}

TEST_F(RouterPairTest, WorksWithAUnifiedWorkerAlone) {
  FakeWorker unified(DemoInfo(v1::WORKER_ROLE_UNIFIED));
  std::atomic<bool> has_handle = true;
  unified.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        has_handle = request.has_kv_handle();
        return GoodDecode()(request, stream);
      });
  StartRouter(RouterForTest::Options({&unified}));
  const GenerateOutcome outcome = router_->Generate(IdsRequest(4));
  ASSERT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.text, "abcd");
  EXPECT_FALSE(has_handle);
  EXPECT_EQ(outcome.finished->usage().cached_tokens(), 2u);
  EXPECT_EQ(outcome.finished->timing().prefill_seconds(), 0.75);
  EXPECT_FALSE(outcome.finished->timing().has_kv_transfer_seconds());
}

TEST_F(RouterPairTest, MeasuresWhatTheClientFeels) {
  StartRouter();
  ASSERT_TRUE(router_->Generate(IdsRequest(5)).status.ok());
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
  const std::string role = "{role=\"router\"}";
  EXPECT_EQ(
      router_->Metric("baton_requests_total{role=\"router\",outcome=\"ok\"}"),
      1);
  EXPECT_EQ(router_->Metric("baton_time_to_first_token_seconds_count" + role),
            1);
  EXPECT_EQ(router_->Metric("baton_inter_token_latency_seconds_count" + role),
            4);
  EXPECT_EQ(router_->Metric("baton_queue_time_seconds_count" + role), 1);
  EXPECT_EQ(router_->Metric("baton_prompt_tokens_total" + role), 3);
  EXPECT_EQ(router_->Metric("baton_generated_tokens_total" + role), 5);
  EXPECT_EQ(router_->Metric("baton_cached_tokens_total" + role), 1);
  EXPECT_EQ(router_->Metric("baton_running_requests" + role), 0);
  for (const std::string pool : {"prefill", "decode"}) {
    EXPECT_EQ(router_->Metric("baton_router_workers{role=\"router\",pool=\"" +
                              pool + "\",state=\"ready\"}"),
              1);
  }
}

// --- Cancellation in each phase.

struct CancelCase {
  const char* name;
  // What the workers do until they are cancelled.
  bool prefill_gives_handle;
  bool prefill_gives_token;
  uint32_t decode_tokens;
};

class RouterCancelTest : public RouterPairTest,
                         public ::testing::WithParamInterface<CancelCase> {};

TEST_P(RouterCancelTest, EndsBothWorkersCallsAtOnce) {
  const CancelCase& phase = GetParam();
  std::atomic<int> num_cancelled = 0;
  absl::Notification reached;
  prefill_.SetPrefill([&](const v1::WorkerRequest&, FakePrefillStream* stream) {
    if (phase.prefill_gives_handle) SendHandle(stream, "h");
    if (phase.prefill_gives_token) stream->SendTokens(0, LetterTokens(0, 1));
    if (!phase.prefill_gives_handle) reached.Notify();
    num_cancelled += stream->WaitUntilCancelled();
    return grpc::Status::CANCELLED;
  });
  decode_.SetDecode([&](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    if (phase.decode_tokens > 0) {
      stream->SendTokens(0, LetterTokens(0, phase.decode_tokens));
    }
    reached.Notify();
    num_cancelled += stream->WaitUntilCancelled();
    return grpc::Status::CANCELLED;
  });
  StartRouter();
  grpc::ClientContext context;
  const auto reader = router_->stub().Generate(&context, IdsRequest(100));
  reached.WaitForNotification();
  if (phase.prefill_gives_token) {
    v1::GenerateResponse first;
    EXPECT_TRUE(reader->Read(&first));
  }
  context.TryCancel();
  v1::GenerateResponse rest;
  while (reader->Read(&rest)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
  EXPECT_EQ(num_cancelled, phase.prefill_gives_handle ? 2 : 1);
}

INSTANTIATE_TEST_SUITE_P(
    Phases, RouterCancelTest,
    ::testing::Values(CancelCase{"WhilePrefillReservesBlocks", false, false, 0},
                      CancelCase{"WhileTheKvIsPulled", true, false, 0},
                      CancelCase{"AfterTheFirstToken", true, true, 0},
                      CancelCase{"WhileDecoding", true, true, 3}),
    [](const auto& one) { return one.param.name; });

TEST(RouterDeathTest, DiesWhenACallOutlivesItForTooLong) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        prometheus::Registry registry;
        Router::Options options = RouterForTest::Options({});
        options.call_end_timeout = absl::ZeroDuration();
        Router router(options, &DemoText(), &registry);
        router.OnCallMade();
      },
      "1 calls have not ended");
}

}  // namespace
}  // namespace baton
