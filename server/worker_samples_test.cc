// Several samples of one prompt over one stream.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/loopback_transport.h"
#include "server/worker_for_test.h"
#include "server/worker_stream_for_test.h"
#include "tests/fakes/fake_rank.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

GenerationRequest Samples(uint64_t counter, uint32_t prompt,
                          uint32_t max_tokens, uint32_t num_samples) {
  GenerationRequest request = MakeRequest(counter, prompt, max_tokens);
  request.num_samples = num_samples;
  return request;
}

ExpectedTokens ExpectedOfSample(GenerationRequest request, uint32_t index) {
  request.sample_index = index;
  return ExpectedOf(kModel, request);
}

void ExpectAllExact(const GenerationRequest& request,
                    const std::map<uint32_t, Received>& got) {
  for (const auto& [index, sample] : got) {
    EXPECT_TRUE(sample.status.ok()) << sample.status;
    EXPECT_TRUE(sample.finished.has_load()) << index;
    const ExpectedTokens expected = ExpectedOfSample(request, index);
    EXPECT_EQ(sample.tokens, expected.tokens) << index;
    EXPECT_EQ(sample.logprobs, expected.logprobs) << index;
  }
}

void ExpectPrefix(const std::vector<uint32_t>& tokens,
                  const std::vector<uint32_t>& expected) {
  ASSERT_LE(tokens.size(), expected.size());
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin()));
}

void Abort(TestWorker& worker, const GenerationRequest& request,
           std::optional<uint32_t> sample) {
  v1::AbortRequest abort;
  abort.mutable_id()->set_router_nonce(request.id.router_nonce);
  abort.mutable_id()->set_counter(request.id.counter);
  if (sample.has_value()) abort.set_sample_index(*sample);
  grpc::ClientContext context;
  v1::AbortResponse aborted;
  EXPECT_TRUE(worker.stub().Abort(&context, abort, &aborted).ok());
}

TEST(WorkerSamplesTest, EachOneHasItsTokensAndItsEnd) {
  TestWorker worker({});
  for (const uint32_t num_samples : {1, 2, 9}) {
    for (const uint32_t prompt : {10, 130}) {
      GenerationRequest request = Samples(7, prompt, 60, num_samples);
      request.sample_index = 3;
      ExpectAllExact(request, DecodeSamples(&worker.stub(), DecodeOf(request)));
    }
  }
}

TEST(WorkerSamplesTest, ThePromptIsToldOnceAndFirst) {
  TestWorker worker({});
  GenerationRequest request = Samples(7, 130, 20, 4);
  request.prompt_logprobs_from = 5;
  auto got = DecodeSamples(&worker.stub(), DecodeOf(request));
  EXPECT_EQ(got[0].prompt_logprobs,
            ExpectedOf(kModel, request).prompt_logprobs);
  request.prompt_logprobs_from.reset();
  ExpectAllExact(request, got);
}

TEST(WorkerSamplesTest, TheyAreOneRequestOfTheMetrics) {
  TestWorker worker({});
  DecodeSamples(&worker.stub(), DecodeOf(Samples(7, 130, 20, 3)));
  const std::string metrics = worker.Metrics();
  for (const char* line :
       {"baton_requests_total{role=\"test\",outcome=\"ok\"} 1",
        "baton_prompt_tokens_total{role=\"test\"} 130",
        "baton_cached_tokens_total{role=\"test\"} 0",
        "baton_generated_tokens_total{role=\"test\"} 60",
        "baton_time_to_first_token_seconds_count{role=\"test\"} 1",
        "baton_inter_token_latency_seconds_count{role=\"test\"} 57"}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
}

TEST(WorkerSamplesTest, MoreThanMayWaitAreRefused) {
  TestWorker worker({.engine = {.max_waiting_requests = 4}});
  auto got = DecodeSamples(&worker.stub(), DecodeOf(Samples(7, 10, 5, 5)));
  EXPECT_TRUE(absl::IsInvalidArgument(got[0].status)) << got[0].status;
}

// Sooner or later each draws the token behind which there are no logits.
TEST(WorkerSamplesTest, AFailureOfOneEndsTheStreamWithIt) {
  FakeModelRunner::Options model = kModel;
  model.poison_token = 62;
  TestWorker worker({.model = model});
  GenerationRequest request = Samples(7, 100, 900, 4);
  auto got = DecodeSamples(&worker.stub(), DecodeOf(request));
  size_t most = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(absl::IsInternal(got[i].status)) << got[i].status;
    EXPECT_FALSE(got[i].finished.has_load());
    request.sample_index = i;
    const ExpectedTokens expected = ExpectedOf(model, request);
    EXPECT_FALSE(expected.sampleable);
    ExpectPrefix(got[i].tokens, expected.tokens);
    most = std::max(most, expected.tokens.size());
  }
  EXPECT_LT(got[0].tokens.size() + got[1].tokens.size() + got[2].tokens.size() +
                got[3].tokens.size(),
            4 * most);
  EXPECT_THAT(worker.Metrics(),
              HasSubstr("baton_requests_total{role=\"test\",outcome="
                        "\"internal\"} 1"));
}

// Twenty-five requests; reads up to 29 answers of each, then cancels.
void CancelOften(TestWorker* worker, uint32_t client) {
  std::mt19937 random(client);
  for (uint32_t i = 0; i < 25; ++i) {
    grpc::ClientContext context;
    auto reader = worker->stub().Decode(
        &context, DecodeOf(Samples(client * 1000 + i, 1 + random() % 300, 150,
                                   1 + random() % 6)));
    v1::DecodeResponse response;
    for (uint32_t reads = random() % 30; reads > 0; --reads) {
      if (!reader->Read(&response)) break;
    }
    context.TryCancel();
    reader->Finish();
  }
}

TEST(WorkerSamplesTest, ClientsThatGoAtRandomTimesLeaveNothingBehind) {
  TestWorker worker({.engine = {.max_running_requests = 6,
                                .max_waiting_requests = 1000,
                                .max_batched_tokens = 32,
                                .max_chunk_tokens = 16},
                     .num_blocks = 40});
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < 6; ++c) {
    clients.emplace_back(&CancelOften, &worker, c);
  }
  for (std::thread& client : clients) client.join();
  const GenerationRequest request = Samples(9, 10, 5, 3);
  ExpectAllExact(request, DecodeSamples(&worker.stub(), DecodeOf(request)));
}

using WorkerPairSamplesTest = WorkerPairTest;

TEST_F(WorkerPairSamplesTest, SplitSamplesShareTheImport) {
  for (const uint64_t counter : {1, 3}) {
    const GenerationRequest request = Samples(counter, 130, 40, 5);
    const auto got = GenerateSamples(request);
    ExpectAllExact(request, got);
    EXPECT_GT(got.at(0).finished.kv_transfer_bytes(), 0u);
    EXPECT_EQ(got.at(4).finished.kv_transfer_bytes(), 0u);
    EXPECT_EQ(got.at(4).finished.cached_tokens(), 128u);
  }
}

// A decode call of five samples whose import hears nothing: until somebody ends
// it.
class WorkerHangingImportTest : public WorkerPairTest {
 protected:
  WorkerHangingImportTest() {
    network_.set_hook([](std::string_view from, auto, auto) {
      return LoopbackFate{.copies = from == "prefill" ? 0u : 1u};
    });
  }

  // What is read once `end` has been done to it.
  template <typename Act>
  std::map<uint32_t, Received> EndBy(Act end) {
    grpc::ClientContext lease_context;
    v1::PrefillResponse response;
    const auto lease = OpenLease(request_, &lease_context, &response);
    v1::DecodeRequest decode = DecodeOf(request_);
    decode.set_kv_handle(response.kv_handle());
    grpc::ClientContext context;
    auto reader = decode_.stub().Decode(&context, decode);
    while (decode_.engine().load().importing_requests == 0) {
      std::this_thread::yield();
    }
    end(&context);
    auto got = ReadSamples(decode.request(), reader.get());
    lease_context.TryCancel();
    EXPECT_FALSE(lease->Finish().ok());
    return got;
  }

  static void ExpectNothing(const std::map<uint32_t, Received>& got) {
    ASSERT_EQ(got.size(), 5u);
    for (const auto& [index, sample] : got) {
      EXPECT_TRUE(sample.tokens.empty());
      EXPECT_FALSE(sample.finished.has_load());
    }
  }

  GenerationRequest request_ = Samples(1, 130, 40, 5);
};

TEST_F(WorkerHangingImportTest, ALostExporterAbortsTheWholeCall) {
  auto got = EndBy([this](auto) { network_.Kill("prefill", /*told=*/true); });
  ExpectNothing(got);
  EXPECT_TRUE(absl::IsAborted(got[0].status)) << got[0].status;
}

TEST_F(WorkerHangingImportTest, ACutWorkerSaysThatItDrains) {
  auto got = EndBy([this](auto) {
    decode_.gate().Close();
    decode_.gate().Cut();
  });
  ExpectNothing(got);
  EXPECT_EQ(ErrorReason(got[0].status), "DRAINING");
}

TEST_F(WorkerHangingImportTest, AClientThatGoesAbortsAllOfThem) {
  auto got = EndBy([](grpc::ClientContext* context) { context->TryCancel(); });
  ExpectNothing(got);
  EXPECT_TRUE(absl::IsCancelled(got[0].status)) << got[0].status;
}

TEST_F(WorkerHangingImportTest, AnAbortOfAllEndsTheStreamWithCancelled) {
  auto got = EndBy([this](auto) { Abort(decode_, request_, std::nullopt); });
  ExpectNothing(got);
  EXPECT_TRUE(absl::IsCancelled(got[0].status)) << got[0].status;
}

TEST_F(WorkerHangingImportTest, AbortsOfSomeHaveNoEndAndDisturbNoOther) {
  auto got = EndBy([this](auto) {
    EXPECT_EQ(decode_.engine().load().waiting_requests, 4u);
    Abort(decode_, request_, 2);
    Abort(decode_, request_, 0);
  });
  for (const uint32_t victim : {0, 2}) {
    EXPECT_TRUE(got[victim].tokens.empty());
    EXPECT_FALSE(got[victim].finished.has_load());
    EXPECT_TRUE(got[victim].status.ok()) << got[victim].status;
    got.erase(victim);
  }
  ExpectAllExact(request_, got);
  EXPECT_EQ(got[1].finished.cached_tokens(), 0u) << "computes the prompt";
  EXPECT_EQ(got[4].finished.cached_tokens(), 128u);
}

// No whole block to wait for.
TEST_F(WorkerHangingImportTest, OneMayBeAbortedWhenTheOthersHaveEnded) {
  request_ = Samples(1, 60, 40, 5);
  auto got = EndBy([this](auto) {
    while (decode_.engine().load().running_requests > 1) {
      std::this_thread::yield();
    }
    Abort(decode_, request_, 0);
  });
  EXPECT_FALSE(got[0].finished.has_load());
  got.erase(0);
  ExpectAllExact(request_, got);
}

TEST_F(WorkerHangingImportTest, ARequestThatIsLiveAlreadyStaysSo) {
  auto got = EndBy([this](auto) {
    auto refused = DecodeSamples(&decode_.stub(), DecodeOf(request_));
    EXPECT_TRUE(absl::IsAlreadyExists(refused[0].status)) << refused[0].status;
    Abort(decode_, request_, 0);
  });
  got.erase(0);
  ExpectAllExact(request_, got);
}

TEST_F(WorkerHangingImportTest, ASampleThatIsLiveAlreadyStaysSo) {
  auto got = EndBy([this](auto) {
    GenerationRequest again = Samples(1, 130, 40, 3);
    again.sample_index = 4;
    auto refused = DecodeSamples(&decode_.stub(), DecodeOf(again));
    EXPECT_TRUE(absl::IsAlreadyExists(refused[4].status)) << refused[4].status;
    Abort(decode_, request_, 0);
  });
  got.erase(0);
  ExpectAllExact(request_, got);
}

}  // namespace
}  // namespace baton
