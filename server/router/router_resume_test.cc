// Streams go on elsewhere when their workers are lost: real gRPC, scripted
// workers.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/router/router_for_test.h"
#include "server/router/service_times.h"

namespace baton {
namespace {

using ::grpc::StatusCode;

grpc::Status Unavailable() { return {StatusCode::UNAVAILABLE, "scripted"}; }

uint32_t NumResumed(const v1::WorkerRequest& request) {
  return request.token_ids_size() - request.original_prompt_tokens();
}

// As GoodDecode, but from the tokens that the request has, `width` a message;
// of the samples of an unresumed one only `cut` tokens, and then the end.
FakeWorker::DecodeScript CutDecode(uint32_t width, uint32_t cut,
                                   const grpc::Status& end) {
  return [=](const v1::DecodeRequest& decode, FakeDecodeStream* stream) {
    const v1::WorkerRequest& request = decode.request();
    const uint32_t first = request.sample_index();
    const uint32_t num_samples = std::max(request.num_samples(), 1u);
    const uint32_t last = std::min(cut, request.max_tokens());
    for (uint32_t i = NumResumed(request); i < last; i += width) {
      const uint32_t count = std::min(width, last - i);
      for (uint32_t s = first; s < first + num_samples; ++s) {
        stream->SendTokens(i, LetterTokens(s + i, count), s);
      }
    }
    if (!end.ok()) return end;
    for (uint32_t s = first; s < first + num_samples; ++s) {
      SendFinished(stream, v1::WORKER_FINISH_REASON_LENGTH, last, s);
    }
    return grpc::Status::OK;
  };
}

FakeWorker::DecodeScript WholeDecode(uint32_t width = 1) {
  return CutDecode(width, UINT32_MAX, grpc::Status::OK);
}

class RouterResumeTest : public ::testing::Test {
 protected:
  RouterResumeTest() {
    for (FakeWorker* worker : {&prefill_, &other_prefill_}) {
      worker->SetPrefill(
          [](const v1::WorkerRequest& request, FakePrefillStream* stream) {
            SendHandle(stream, "h");
            const uint32_t index = NumResumed(request);
            stream->SendTokens(index,
                               LetterTokens(request.sample_index() + index, 1),
                               request.sample_index());
            SendReleased(stream);
            return grpc::Status::OK;
          });
    }
    for (FakeWorker* worker : {&decode_, &other_decode_}) {
      worker->SetDecode(WholeDecode());
    }
  }
  void StartRouter(const std::vector<const FakeWorker*>& workers) {
    StartRouter(RouterForTest::Options(workers));
  }
  void StartRouter(Router::Options options) {
    const auto num_workers = static_cast<int>(options.workers.size());
    router_ = std::make_unique<RouterForTest>(std::move(options));
    ASSERT_TRUE(WaitFor([&] {
      return router_->router().pool().CountStates()[static_cast<int>(
                 WorkerState::kReady)] == num_workers;
    }));
  }
  bool IsIdle() {
    return router_->router().admission().num_running() == 0 &&
           router_->router().pool().num_in_flight() == 0;
  }
  double Resumes(const std::string& reason) {
    return router_->Metric(
        "baton_router_resumes_total{role=\"router\",reason=\"" + reason +
        "\"}");
  }
  double RecomputedTokens() {
    return router_->Metric(
        "baton_router_recomputed_tokens_total{role=\"router\"}");
  }
  // Of a client that takes little in advance.
  std::unique_ptr<v1::InferenceService::Stub> NarrowStub() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4096);
    return v1::InferenceService::NewStub(grpc::CreateCustomChannel(
        router_->address(), grpc::InsecureChannelCredentials(), arguments));
  }
  static v1::GenerateRequest RequestOf(uint32_t num_samples,
                                       uint32_t max_tokens) {
    v1::GenerateRequest request = IdsRequest(max_tokens);
    request.mutable_sampling()->set_n(num_samples);
    return request;
  }

  FakeWorker prefill_{DemoInfo(v1::WORKER_ROLE_PREFILL)};
  FakeWorker other_prefill_{DemoInfo(v1::WORKER_ROLE_PREFILL)};
  FakeWorker decode_{DemoInfo(v1::WORKER_ROLE_DECODE)};
  FakeWorker other_decode_{DemoInfo(v1::WORKER_ROLE_DECODE)};
  std::unique_ptr<RouterForTest> router_;
};

TEST_F(RouterResumeTest, GoesOnAtAnotherDecodeWorkerWithTheSameTokens) {
  decode_.SetDecode(CutDecode(1, 5, Unavailable()));
  StartRouter({&prefill_, &decode_, &other_decode_});
  v1::GenerateRequest request = IdsRequest(9);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_repetition_penalty(1.5);
  request.mutable_stopping()->set_min_tokens(7);
  const GenerateOutcome outcome = router_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.text, "abcdefghi");
  EXPECT_EQ(outcome.token_ids, LetterTokens(0, 9));
  EXPECT_EQ(outcome.logprobs,
            (std::vector<float>{0, -1, -2, -3, -4, -5, -6, -7, -8}));
  EXPECT_EQ(outcome.finished->usage().completion_tokens(), 9u);
  EXPECT_EQ(outcome.finished->usage().prompt_tokens(), 3u);
  ASSERT_EQ(prefill_.requests().size(), 2u);
  ASSERT_EQ(other_decode_.requests().size(), 1u);
  const v1::WorkerRequest first = decode_.requests()[0];
  for (v1::WorkerRequest again :
       {prefill_.requests()[1], other_decode_.requests()[0]}) {
    EXPECT_EQ(again.attempt(), 1u);
    EXPECT_EQ(NumResumed(again), 5u);
    EXPECT_NE(again.id().counter(), first.id().counter());
    // All else is as it was.
    *again.mutable_id() = first.id();
    again.set_attempt(0);
    *again.mutable_token_ids() = first.token_ids();
    EXPECT_EQ(again.SerializeAsString(), first.SerializeAsString());
  }
  EXPECT_EQ(Resumes("decode_lost"), 1);
  EXPECT_EQ(RecomputedTokens(), 3 + 5);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterResumeTest, EachSampleGoesOnByItself) {
  decode_.SetDecode(CutDecode(3, 5, Unavailable()));
  other_decode_.SetDecode(WholeDecode(4));
  StartRouter({&prefill_, &other_prefill_, &decode_, &other_decode_});
  const GenerateOutcome outcome = router_->Generate(RequestOf(5, 12));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.token_ids, LetterTokens(0, 12));
  ASSERT_EQ(outcome.samples.size(), 4u);
  for (const auto& [index, sample] : outcome.samples) {
    EXPECT_EQ(sample.token_ids, LetterTokens(index, 12)) << index;
    EXPECT_EQ(sample.finished->usage().completion_tokens(), 12u);
  }
  EXPECT_EQ(Resumes("decode_lost"), 5);
  EXPECT_EQ(RecomputedTokens(), 5 * (3 + 5));
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterResumeTest, GoesOnAfterAWorkerDiedThoughItHadSaidAllButTheEnd) {
  decode_.SetDecode(CutDecode(4, UINT32_MAX, Unavailable()));
  StartRouter({&prefill_, &decode_});
  const GenerateOutcome outcome = router_->Generate(RequestOf(2, 6));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.text, "abcdef");
  EXPECT_EQ(outcome.samples.at(1).text, "bcdefg");
  EXPECT_EQ(outcome.finished->finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(decode_.requests().size(), 1u);
  EXPECT_EQ(Resumes("decode_lost"), 0);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterResumeTest, FindsAStopStringOfWhichTheLostWorkerSentTheBeginning) {
  decode_.SetDecode(CutDecode(1, 5, Unavailable()));  // "abcde"
  StartRouter({&prefill_, &decode_, &other_decode_});
  v1::GenerateRequest request = IdsRequest(20);
  request.mutable_stopping()->add_stop_strings("defg");
  const GenerateOutcome outcome = router_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.text, "abc");
  EXPECT_EQ(outcome.finished->stop_string(), "defg");
  EXPECT_EQ(outcome.finished->usage().completion_tokens(), 7u);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterResumeTest, GoesOnWhereThePrefillWorkerDiedAfterItsToken) {
  absl::Notification shown;
  prefill_.SetPrefill([&](const v1::WorkerRequest&, FakePrefillStream* stream) {
    SendHandle(stream, "h");
    stream->SendTokens(0, LetterTokens(0, 1));
    shown.WaitForNotification();
    return Unavailable();
  });
  decode_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        if (request.request().attempt() > 0) {
          return WholeDecode()(request, stream);
        }
        EXPECT_TRUE(stream->WaitUntilCancelled());
        return grpc::Status::CANCELLED;
      });
  StartRouter({&prefill_, &other_prefill_, &decode_});
  grpc::ClientContext context;
  const auto reader = router_->stub().Generate(&context, IdsRequest(4));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.chunk().text(), "a");
  shown.Notify();
  std::string text;
  while (reader->Read(&response)) text += response.chunk().text();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, "bcd");
  EXPECT_EQ(Resumes("prefill_lost"), 1);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterResumeTest, WaitsForAPlaceWhereAllWorkersAreFull) {
  std::atomic<int> calls = 0;
  for (FakeWorker* worker : {&decode_, &other_decode_}) {
    worker->SetDecode(
        [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
          const int call = ++calls;
          if (call == 1) return CutDecode(1, 3, Unavailable())(request, stream);
          if (call <= 5) {
            return grpc::Status(StatusCode::RESOURCE_EXHAUSTED, "full");
          }
          return WholeDecode()(request, stream);
        });
  }
  Router::Options options =
      RouterForTest::Options({&prefill_, &decode_, &other_decode_});
  options.worker_wait = absl::Minutes(1);
  StartRouter(std::move(options));
  // More than what the prefill of each attempt brings.
  const GenerateOutcome outcome = router_->Generate(IdsRequest(12));
  EXPECT_EQ(outcome.text, "abcdefghijkl") << outcome.status.error_message();
  EXPECT_EQ(calls, 6);
  EXPECT_EQ(Resumes("decode_lost"), 1);
  EXPECT_EQ(Resumes("busy"), 4);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterResumeTest, ManyStreamsOutliveWorkersThatCutAtRandom) {
  constexpr int kClients = 24;
  for (FakeWorker* worker : {&decode_, &other_decode_}) {
    worker->SetDecode(
        [](const v1::DecodeRequest& decode, FakeDecodeStream* stream) {
          const v1::WorkerRequest& request = decode.request();
          const uint32_t number = static_cast<uint32_t>(request.id().counter());
          const uint32_t end = NumResumed(request) + 1 + number * 7 % 40;
          if (end >= request.max_tokens()) {
            return WholeDecode(1 + number % 3)(decode, stream);
          }
          return CutDecode(1 + number % 3, end, Unavailable())(decode, stream);
        });
  }
  Router::Options options = RouterForTest::Options(
      {&prefill_, &other_prefill_, &decode_, &other_decode_});
  options.max_retries = 10;
  options.worker_wait = absl::Minutes(1);
  StartRouter(std::move(options));
  std::atomic<int> num_right = 0;
  std::vector<std::thread> clients;
  clients.reserve(kClients);
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const uint32_t n = 1 + i % 3;
      const GenerateOutcome outcome = router_->Generate(RequestOf(n, 60));
      bool is_right = outcome.status.ok() &&
                      outcome.token_ids == LetterTokens(0, 60) &&
                      outcome.samples.size() == n - 1;
      for (const auto& [index, sample] : outcome.samples) {
        is_right &= sample.token_ids == LetterTokens(index, 60);
      }
      EXPECT_TRUE(is_right) << outcome.status.error_message();
      num_right += is_right;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_right, kClients);
  EXPECT_GE(Resumes("decode_lost"), 10);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterResumeTest, AClientThatReadsOnGetsAllThoughItsWorkerIsLongLost) {
  constexpr uint32_t kLost = 3000, kAll = 3400;
  decode_.SetDecode(CutDecode(1, kLost, Unavailable()));
  Router::Options options = RouterForTest::Options({&prefill_, &decode_});
  options.streams.pause_bytes = 2048;
  options.streams.resume_bytes = 512;
  StartRouter(std::move(options));
  const auto stub = NarrowStub();
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, IdsRequest(kAll));
  // The worker has said all, and failed; the router has read a part of it.
  ASSERT_TRUE(WaitFor([&] {
    return router_->router().streams().counts().paused == 1 &&
           decode_.num_open() == 0;
  }));
  EXPECT_EQ(Resumes("decode_lost"), 0);
  EXPECT_EQ(router_->router().admission().num_running(), 0u);
  decode_.SetDecode(WholeDecode());
  const GenerateOutcome outcome = ReadAll(reader.get());
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.token_ids, LetterTokens(0, kAll));
  EXPECT_EQ(Resumes("decode_lost"), 1);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

// Another one had its place meanwhile.
TEST_F(RouterResumeTest, TheTimeOfASlowClientSaysNothingOfTheQueue) {
  Router::Options options = RouterForTest::Options({&prefill_, &decode_});
  options.streams.pause_bytes = 2048;
  options.streams.resume_bytes = 512;
  StartRouter(std::move(options));
  Router& router = router_->router();
  const auto queue_time = [&router] {
    return router.service_times().LeastQueueTime(/*num_ahead=*/1,
                                                 /*num_slots=*/1,
                                                 router.clock().Now());
  };
  const auto stub = NarrowStub();
  for (size_t i = 0; i < ServiceTimes::kMinSamples; ++i) {
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, IdsRequest(3000));
    ASSERT_TRUE(WaitFor([&] { return router.streams().counts().paused == 1; }));
    EXPECT_TRUE(ReadAll(reader.get()).status.ok());
  }
  EXPECT_EQ(queue_time(), absl::ZeroDuration());
  for (size_t i = 0; i < ServiceTimes::kMinSamples; ++i) {
    EXPECT_TRUE(router_->Generate(IdsRequest(2)).status.ok());
  }
  EXPECT_GT(queue_time(), absl::ZeroDuration());
}

TEST_F(RouterResumeTest, AClientThatGivesUpWhileItIsPausedLeavesNothing) {
  decode_.SetDecode(
      [](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        CutDecode(1, 3000, Unavailable())(request, stream);
        stream->WaitUntilCancelled();
        return grpc::Status::CANCELLED;
      });
  Router::Options options = RouterForTest::Options({&prefill_, &decode_});
  options.streams.pause_bytes = 2048;
  options.streams.resume_bytes = 512;
  StartRouter(std::move(options));
  const auto stub = NarrowStub();
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, IdsRequest(3400));
  ASSERT_TRUE(WaitFor(
      [&] { return router_->router().streams().counts().paused == 1; }));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(WaitFor([&] { return IsIdle() && decode_.num_open() == 0; }));
}

}  // namespace
}  // namespace baton
