// Several samples of a prompt: real gRPC, scripted workers.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "server/router/router_for_test.h"

namespace baton {
namespace {

class RouterSamplesTest : public ::testing::Test {
 protected:
  RouterSamplesTest() {
    prefill_.SetPrefill(GoodPrefill());
    decode_.SetDecode(GoodDecode());
    unified_.SetDecode(GoodDecode());
  }
  void StartRouter(const std::vector<const FakeWorker*>& workers) {
    router_ = std::make_unique<RouterForTest>(RouterForTest::Options(workers));
    router_->router().pool().WaitUntilReady();
  }
  bool IsIdle() {
    return prefill_.num_open() == 0 && decode_.num_open() == 0 &&
           unified_.num_open() == 0 &&
           router_->router().admission().num_running() == 0 &&
           router_->router().pool().num_in_flight() == 0;
  }
  static v1::GenerateRequest RequestOf(uint32_t num_samples,
                                       uint32_t max_tokens) {
    v1::GenerateRequest request = IdsRequest(max_tokens);
    request.mutable_sampling()->set_n(num_samples);
    return request;
  }

  FakeWorker prefill_{DemoInfo(v1::WORKER_ROLE_PREFILL)};
  FakeWorker decode_{DemoInfo(v1::WORKER_ROLE_DECODE)};
  FakeWorker unified_{DemoInfo(v1::WORKER_ROLE_UNIFIED)};
  std::unique_ptr<RouterForTest> router_;
};

TEST_F(RouterSamplesTest, EachComesWholeThroughAPair) {
  StartRouter({&prefill_, &decode_});
  const GenerateOutcome outcome = router_->Generate(RequestOf(3, 4));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.text, "abcd");
  ASSERT_EQ(outcome.samples.size(), 2u);
  EXPECT_EQ(outcome.samples.at(1).text, "bcde");
  EXPECT_EQ(outcome.samples.at(2).text, "cdef");
  for (const auto& [index, sample] : outcome.samples) {
    ASSERT_TRUE(sample.finished.has_value()) << index;
    EXPECT_EQ(sample.finished->usage().prompt_tokens(), 3u);
    EXPECT_EQ(sample.finished->usage().cached_tokens(), 1u);
    EXPECT_EQ(sample.finished->usage().completion_tokens(), 4u);
    EXPECT_EQ(sample.finished->timing().prefill_seconds(), 0.25);
  }
  ASSERT_TRUE(outcome.finished.has_value());
  EXPECT_FALSE(prefill_.requests().at(0).has_num_samples());
  EXPECT_EQ(decode_.requests().at(0).num_samples(), 3u);
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterSamplesTest, AllTokensAreCountedAndTheFirstIsTimedOnce) {
  StartRouter({&unified_});
  ASSERT_TRUE(router_->Generate(RequestOf(3, 4)).status.ok());
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
  const std::string role = "{role=\"router\"}";
  EXPECT_EQ(router_->Metric("baton_generated_tokens_total" + role), 12);
  EXPECT_EQ(router_->Metric("baton_prompt_tokens_total" + role), 3);
  EXPECT_EQ(router_->Metric("baton_time_to_first_token_seconds_count" + role),
            1);
  EXPECT_EQ(router_->Metric("baton_inter_token_latency_seconds_count" + role),
            9)
      << "between tokens of a sample";
}

TEST_F(RouterSamplesTest, AStopStringAbortsItsSampleAtTheWorkerAndNoOther) {
  std::atomic<bool> was_cancelled = false;
  unified_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        stream->SendTokens(0, LetterTokens(0, 1), 0);
        stream->SendTokens(0, LetterTokens(1, 3), 1);  // "bcd"
        EXPECT_TRUE(WaitFor([&] { return !unified_.aborts().empty(); }));
        stream->SendTokens(1, LetterTokens(1, 1), 0);
        was_cancelled = stream->IsCancelled();
        SendFinished(stream, v1::WORKER_FINISH_REASON_LENGTH,
                     request.request().max_tokens(), 0);
        return grpc::Status::OK;
      });
  StartRouter({&unified_});
  v1::GenerateRequest request = RequestOf(2, 2);
  request.mutable_stopping()->set_max_tokens(2);
  request.mutable_stopping()->add_stop_strings("c");
  const GenerateOutcome outcome = router_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.text, "ab");
  EXPECT_EQ(outcome.finished->finish_reason(), v1::FINISH_REASON_LENGTH);
  const GenerateOutcome& other = outcome.samples.at(1);
  EXPECT_EQ(other.text, "b");
  EXPECT_EQ(other.finished->stop_string(), "c");
  EXPECT_EQ(other.finished->usage().completion_tokens(), 2u);
  EXPECT_FALSE(was_cancelled);
  ASSERT_EQ(unified_.aborts().size(), 1u);
  const v1::AbortRequest abort = unified_.aborts()[0];
  EXPECT_EQ(abort.sample_index(), 1u);
  EXPECT_EQ(abort.id().SerializeAsString(),
            unified_.requests().at(0).id().SerializeAsString());
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
}

TEST_F(RouterSamplesTest, TheLastStopStringEndsTheCall) {
  std::atomic<bool> was_cancelled = false;
  unified_.SetDecode([&](const v1::DecodeRequest&, FakeDecodeStream* stream) {
    stream->SendTokens(0, LetterTokens(0, 3), 0);
    stream->SendTokens(0, LetterTokens(1, 3), 1);
    was_cancelled = stream->WaitUntilCancelled();
    return grpc::Status::CANCELLED;
  });
  StartRouter({&unified_});
  v1::GenerateRequest request = RequestOf(2, 100);
  request.mutable_stopping()->add_stop_strings("c");
  const GenerateOutcome outcome = router_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.text, "ab");
  EXPECT_EQ(outcome.samples.at(1).text, "b");
  EXPECT_TRUE(WaitFor([&] { return IsIdle(); }));
  EXPECT_TRUE(was_cancelled);
}

TEST_F(RouterSamplesTest, ManyThatWaitForOneIntervalDoNotCutTheirReader) {
  // A sample's tokens all come at once: several hundred KiB.
  unified_.SetDecode(
      [&](const v1::DecodeRequest& request, FakeDecodeStream* stream) {
        for (uint32_t s = 0; s < request.request().num_samples(); ++s) {
          stream->SendTokens(0, LetterTokens(s, 1000), s);
          SendFinished(stream, v1::WORKER_FINISH_REASON_LENGTH, 1000, s);
        }
        return grpc::Status::OK;
      });
  StartRouter({&unified_});
  v1::GenerateRequest request = RequestOf(128, 1000);
  request.mutable_output()->set_stream_interval(1000);
  const GenerateOutcome outcome = router_->Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_EQ(outcome.samples.size(), 127u);
  for (const auto& [index, sample] : outcome.samples) {
    EXPECT_EQ(sample.token_ids.size(), 1000u) << index;
  }
}

}  // namespace
}  // namespace baton
