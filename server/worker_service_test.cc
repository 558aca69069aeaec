// The service over a real channel, a real engine and a fake model.
#include "server/worker_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/kv_transfer_message.h"
#include "comm/loopback_transport.h"
#include "server/convert.h"
#include "server/group_metrics.h"
#include "server/warm_up.h"
#include "server/worker_for_test.h"
#include "server/worker_stream_for_test.h"
#include "tests/fakes/fake_rank.h"

namespace baton {
namespace {

TEST(WorkerServiceTest, AUnifiedWorkerStreamsTheModelsTokens) {
  TestWorker worker({});
  ASSERT_TRUE(WarmUp(&worker.engine(), worker.clock(), absl::Seconds(60)).ok());
  for (const uint64_t counter : {1, 2, 6, 11}) {
    const GenerationRequest request = MakeRequest(counter, 100, 50);
    const Received got = Decode(&worker.stub(), DecodeOf(request));
    ASSERT_TRUE(got.status.ok()) << got.status;
    const ExpectedTokens expected = ExpectedOf(kModel, request);
    EXPECT_EQ(got.tokens, expected.tokens);
    EXPECT_EQ(got.logprobs, expected.logprobs);
    EXPECT_EQ(got.prompt_logprobs, expected.prompt_logprobs);
    if (request.sampling.num_top_logprobs > 0) {
      EXPECT_EQ(got.top, expected.top);
      EXPECT_EQ(got.prompt_top, expected.prompt_top);
    }
    EXPECT_EQ(got.finished.finish_reason(), v1::WORKER_FINISH_REASON_LENGTH);
    EXPECT_EQ(got.finished.prompt_tokens(), 100u);
    EXPECT_EQ(got.finished.completion_tokens(), 50u);
    EXPECT_EQ(got.finished.attempt(), 3u);
    EXPECT_EQ(got.finished.load().total_kv_blocks(), 64u);
  }
}

TEST(WorkerServiceTest, AStopTokenEndsTheStreamAndIsCounted) {
  TestWorker worker({});
  GenerationRequest request = MakeRequest(2, 10, 50);
  const uint32_t stop = ExpectedOf(kModel, request).tokens[7];
  v1::DecodeRequest decode = DecodeOf(request);
  decode.mutable_request()->add_stop_token_ids(stop);
  request.stop_token_ids = {stop};
  const Received got = Decode(&worker.stub(), decode);
  EXPECT_EQ(got.finished.finish_reason(), v1::WORKER_FINISH_REASON_STOP_TOKEN);
  EXPECT_EQ(got.tokens, ExpectedOf(kModel, request).tokens);
}

TEST(WorkerServiceTest, ABadRequestIsRefusedWithItsFieldAndHarmsNobody) {
  TestWorker worker({});
  v1::DecodeRequest bad = DecodeOf(MakeRequest(1, 10, 5));
  bad.mutable_request()->mutable_sampling()->set_top_p(2);
  const Received got = Decode(&worker.stub(), bad);
  EXPECT_TRUE(absl::IsInvalidArgument(got.status));
  EXPECT_EQ(ErrorReason(got.status), "INVALID_FIELD");
  EXPECT_TRUE(Decode(&worker.stub(), v1::DecodeRequest()).tokens.empty());
  EXPECT_TRUE(
      Decode(&worker.stub(), DecodeOf(MakeRequest(1, 10, 5))).status.ok());
}

TEST(WorkerServiceTest, EachRoleServesItsCallsAlone) {
  v1::PrefillRequest prefill;
  *prefill.mutable_request() = ToProto(MakeRequest(1, 10, 5));
  for (const v1::WorkerRole role :
       {v1::WORKER_ROLE_UNIFIED, v1::WORKER_ROLE_DECODE}) {
    TestWorker worker({.role = role});
    grpc::ClientContext context;
    const absl::Status status =
        FromGrpcStatus(worker.stub().Prefill(&context, prefill)->Finish());
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(ErrorReason(status), "WRONG_ROLE");
  }
  TestWorker worker({.role = v1::WORKER_ROLE_PREFILL});
  const Received got = Decode(&worker.stub(), DecodeOf(MakeRequest(1, 10, 5)));
  EXPECT_EQ(ErrorReason(got.status), "WRONG_ROLE");
  TestWorker unified({});
  v1::DecodeRequest with_handle = DecodeOf(MakeRequest(1, 10, 5));
  with_handle.set_kv_handle("h");
  EXPECT_EQ(ErrorReason(Decode(&unified.stub(), with_handle).status),
            "WRONG_ROLE");
}

TEST(WorkerServiceTest, ServesOnlyItsOwnFingerprint) {
  TestWorker worker({});
  v1::DecodeRequest request = DecodeOf(MakeRequest(1, 10, 5));
  request.mutable_request()->set_fingerprint("fake");
  EXPECT_TRUE(Decode(&worker.stub(), request).status.ok());
  request.mutable_request()->set_fingerprint("another");
  const absl::Status status = Decode(&worker.stub(), request).status;
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_EQ(ErrorReason(status), "WRONG_FINGERPRINT");
}

TEST(WorkerServiceTest, InfoLoadAndAbortAnswer) {
  TestWorker worker({});
  grpc::ClientContext info_context;
  v1::GetWorkerInfoResponse info;
  ASSERT_TRUE(
      worker.stub()
          .GetWorkerInfo(&info_context, v1::GetWorkerInfoRequest(), &info)
          .ok());
  EXPECT_EQ(info.fingerprint(), "fake");
  const v1::GetLoadResponse load = worker.GetLoad();
  EXPECT_EQ(load.free_kv_blocks(), 64u);
  ASSERT_EQ(load.ranks_size(), 1);
  EXPECT_EQ(load.ranks(0).free_kv_blocks(), 64u);
  EXPECT_FALSE(load.has_group());
  grpc::ClientContext unknown_context;
  v1::AbortRequest abort;
  abort.mutable_id()->set_counter(99);
  v1::AbortResponse aborted;
  EXPECT_TRUE(worker.stub().Abort(&unknown_context, abort, &aborted).ok());
  grpc::ClientContext bad_context;
  EXPECT_EQ(worker.stub()
                .Abort(&bad_context, v1::AbortRequest(), &aborted)
                .error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(WorkerServiceTest, PushesItsLoadUntilItDrains) {
  TestWorker worker({});
  grpc::ClientContext context;
  const auto reader = worker.stub().WatchLoad(&context, v1::WatchLoadRequest());
  v1::GetLoadResponse load;
  ASSERT_TRUE(reader->Read(&load));
  EXPECT_EQ(load.ranks(0).free_kv_blocks(), 64u);
  EXPECT_EQ(load.running_requests(), 0u);
  grpc::ClientContext decode_context;
  const auto decode =
      worker.stub().Decode(&decode_context, DecodeOf(MakeRequest(1, 10, 1000)));
  v1::DecodeResponse chunk;
  ASSERT_TRUE(decode->Read(&chunk));
  // At most a message each 10 ms, on a clock that stands still.
  worker.clock().Advance(absl::Milliseconds(10));
  ASSERT_TRUE(reader->Read(&load));
  EXPECT_EQ(load.running_requests() + load.waiting_requests(), 1u);
  decode_context.TryCancel();
  while (load.running_requests() + load.waiting_requests() > 0) {
    worker.clock().Advance(absl::Milliseconds(10));
    ASSERT_TRUE(reader->Read(&load));
  }
  worker.gate().Close();
  EXPECT_FALSE(reader->Read(&load));
  EXPECT_EQ(ErrorReason(FromGrpcStatus(reader->Finish())), "DRAINING");
}

TEST(WorkerServiceTest, TheLoadOfAPartOfAGroupTellsOfTheGroup) {
  prometheus::Registry registry;
  GroupMetrics group(&registry, "test", {.group = 64, .first = 8, .local = 1});
  TestWorker worker({.group = &group});
  group.OnEpochStarted(EpochId(3));
  const v1::GetLoadResponse load = worker.GetLoad();
  EXPECT_EQ(load.group().epoch(), 3u);
  EXPECT_EQ(load.group().rank_offset(), 8u);
}

TEST(WorkerServiceTest, ARankThatIsNotHereIsRefused) {
  TestWorker worker({});
  for (const uint32_t rank : {0u, 1u}) {
    v1::DecodeRequest request = DecodeOf(MakeRequest(rank, 10, 5));
    request.mutable_request()->set_local_rank(rank);
    grpc::ClientContext context;
    auto reader = worker.stub().Decode(&context, request);
    v1::DecodeResponse response;
    while (reader->Read(&response)) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.ok(), rank == 0) << status.error_message();
    if (rank == 0) continue;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find("local_rank"), std::string::npos);
  }
}

TEST(WorkerServiceTest, AbortEndsAStreamWithCancelled) {
  TestWorker worker({});
  const GenerationRequest request = MakeRequest(1, 10, 1000);
  grpc::ClientContext context;
  auto reader = worker.stub().Decode(&context, DecodeOf(request));
  v1::DecodeResponse response;
  ASSERT_TRUE(reader->Read(&response));
  grpc::ClientContext abort_context;
  v1::AbortRequest abort;
  abort.mutable_id()->set_router_nonce(request.id.router_nonce);
  abort.mutable_id()->set_counter(request.id.counter);
  abort.set_sample_index(request.sample_index);
  v1::AbortResponse aborted;
  ASSERT_TRUE(worker.stub().Abort(&abort_context, abort, &aborted).ok());
  bool finished = false;
  while (reader->Read(&response)) finished |= response.has_finished();
  const grpc::Status status = reader->Finish();
  // A fast engine may have been done already.
  EXPECT_EQ(status.error_code(),
            finished ? grpc::StatusCode::OK : grpc::StatusCode::CANCELLED);
}

TEST(WorkerServiceTest, AFullQueueIsRefusedWithARetryDelay) {
  TestWorker worker(
      {.engine = {.max_running_requests = 1, .max_waiting_requests = 1}});
  std::vector<std::thread> clients;
  std::atomic<int> ok{0};
  std::atomic<int> refused{0};
  for (uint64_t i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      const Received got =
          Decode(&worker.stub(), DecodeOf(MakeRequest(i, 10, 900)));
      if (got.status.ok()) {
        ++ok;
      } else {
        EXPECT_TRUE(absl::IsResourceExhausted(got.status)) << got.status;
        EXPECT_TRUE(RetryDelay(got.status).has_value());
        EXPECT_EQ(ErrorReason(got.status), "QUEUE_FULL");
        ++refused;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(ok + refused, 16);
  EXPECT_GT(ok, 0);
  EXPECT_GT(refused, 0);
}

TEST(WorkerServiceTest, TheSameRequestTwiceIsRefusedTheSecondTime) {
  TestWorker worker({});
  const GenerationRequest request = MakeRequest(1, 10, 1000);
  grpc::ClientContext context;
  auto reader = worker.stub().Decode(&context, DecodeOf(request));
  v1::DecodeResponse response;
  ASSERT_TRUE(reader->Read(&response));
  const Received second = Decode(&worker.stub(), DecodeOf(request));
  size_t tokens = response.chunk().token_ids_size();
  while (reader->Read(&response)) tokens += response.chunk().token_ids_size();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(tokens, 1000u);
  // Unless the first was done by then.
  if (!second.status.ok()) {
    EXPECT_TRUE(absl::IsAlreadyExists(second.status)) << second.status;
  }
}

TEST(WorkerServiceTest, ADrainingWorkerFinishesWhatItHasAndTakesNoMore) {
  TestWorker worker({});
  const GenerationRequest request = MakeRequest(1, 10, 1000);
  grpc::ClientContext context;
  auto reader = worker.stub().Decode(&context, DecodeOf(request));
  v1::DecodeResponse response;
  ASSERT_TRUE(reader->Read(&response));
  worker.gate().Close();
  const Received late = Decode(&worker.stub(), DecodeOf(MakeRequest(2, 10, 5)));
  EXPECT_TRUE(absl::IsUnavailable(late.status));
  EXPECT_EQ(ErrorReason(late.status), "DRAINING");
  bool finished = false;
  while (reader->Read(&response)) finished |= response.has_finished();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(finished);
}

TEST(WorkerServiceTest, TheCallsDeadlineIsTheRequests) {
  TestWorker worker({});
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() -
                       std::chrono::seconds(1));
  auto reader =
      worker.stub().Decode(&context, DecodeOf(MakeRequest(1, 10, 1000)));
  v1::DecodeResponse response;
  while (reader->Read(&response)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

// Forty requests for 200 tokens; reads up to 29 answers of each, then cancels.
void CancelOften(TestWorker* worker, uint32_t client) {
  std::mt19937 random(7 + client);
  for (uint64_t i = 0; i < 40; ++i) {
    grpc::ClientContext context;
    auto reader = worker->stub().Decode(
        &context,
        DecodeOf(MakeRequest(client * 1000 + i, 1 + random() % 300, 200)));
    v1::DecodeResponse response;
    for (uint32_t reads = random() % 30; reads > 0; --reads) {
      if (!reader->Read(&response)) break;
    }
    context.TryCancel();
    reader->Finish();
  }
}

TEST(WorkerServiceTest, CancelsAtRandomTimesLeaveNothingBehind) {
  TestWorker worker({.engine = {.max_running_requests = 4,
                                .max_waiting_requests = 1000,
                                .max_batched_tokens = 32,
                                .max_chunk_tokens = 16},
                     .num_blocks = 40});
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < 8; ++c) {
    clients.emplace_back(&CancelOften, &worker, c);
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(
      Decode(&worker.stub(), DecodeOf(MakeRequest(9, 10, 5))).status.ok());
}

TEST_F(WorkerPairTest, ASplitRequestGivesTheUnifiedTokensAndEndsItsLease) {
  for (const uint64_t counter : {1, 2, 3, 4}) {
    const GenerationRequest request = MakeRequest(counter, 130, 40);
    const Received got = Generate(request);
    ASSERT_TRUE(got.status.ok()) << got.status;
    const ExpectedTokens expected = ExpectedOf(kModel, request);
    EXPECT_EQ(got.tokens, expected.tokens);
    EXPECT_EQ(got.logprobs, expected.logprobs);
    EXPECT_GT(got.finished.kv_transfer_bytes(), 0u);
  }
  const v1::GetLoadResponse prefill = prefill_.GetLoad();
  EXPECT_EQ(prefill.imported_kv_bytes(), 0u);
  EXPECT_EQ(prefill.ranks(0).computed_prompt_tokens(), 4u * 130);
  EXPECT_EQ(prefill.ranks(0).drawn_tokens(), 4u);
  const v1::GetLoadResponse decode = decode_.GetLoad();
  EXPECT_GT(decode.imported_kv_bytes(), 0u);
  EXPECT_EQ(decode.ranks(0).drawn_tokens(), 4u * 39);
  EXPECT_GT(decode.ranks(0).decode_steps(), 0u);
  EXPECT_EQ(decode.ranks(0).prefill_steps(), 0u);
}

TEST_F(WorkerPairTest, AHandleOfAnotherFingerprintIsRefused) {
  KvHandle handle;
  handle.fingerprint = "other";
  handle.worker_address = "prefill";
  handle.pool_blocks = 1;
  handle.block_bytes = 64;
  handle.blocks = {{BlockId(0), 0}};
  handle.num_tokens = 10;
  v1::DecodeRequest decode = DecodeOf(MakeRequest(1, 10, 5));
  decode.set_kv_handle(SerializeKvHandle(handle));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(Decode(&decode_.stub(), decode).status));
}

TEST_F(WorkerPairTest, ALostExporterIsAbortedAndNotTheDecodeWorkersFault) {
  const GenerationRequest request = MakeRequest(1, 10, 5);
  grpc::ClientContext context;
  v1::PrefillResponse response;
  const auto lease = OpenLease(request, &context, &response);
  network_.Kill("prefill", /*told=*/true);
  v1::DecodeRequest decode = DecodeOf(request);
  decode.set_kv_handle(response.kv_handle());
  const absl::Status status = Decode(&decode_.stub(), decode).status;
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  context.TryCancel();
  EXPECT_EQ(lease->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(WorkerPairTest, ALostImporterIsAbortedAndNotThePrefillWorkersFault) {
  grpc::ClientContext context;
  v1::PrefillResponse response;
  const auto lease = OpenLease(MakeRequest(1, 10, 5), &context, &response);
  const KvHandle handle = *ParseKvHandle(response.kv_handle());
  const auto importer = network_.CreateEndpoint("importer", {});
  importer->SendMessage(
      importer->Connect(handle.worker_address).value(),
      EncodeKvTransferMessage(KvOpenMessage{.export_id = handle.export_id,
                                            .token = 1,
                                            .num_blocks = 1,
                                            .block_bytes = handle.block_bytes,
                                            .address = "importer"}));
  for (std::vector<TransportEvent> heard; heard.empty();) {
    importer->Wait(absl::Seconds(1));
    importer->Poll(&heard);
  }
  network_.Kill("importer", /*told=*/true);
  while (lease->Read(&response)) EXPECT_FALSE(response.has_released());
  const absl::Status status = FromGrpcStatus(lease->Finish());
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(ErrorReason(status), "IMPORTER_LOST");
}

// Nobody pulls, so the lease is open until it is cut.
TEST_F(WorkerPairTest, ACutWorkerSaysThatItDrains) {
  grpc::ClientContext context;
  v1::PrefillResponse response;
  const auto lease = OpenLease(MakeRequest(1, 10, 5), &context, &response);
  prefill_.gate().Close();
  prefill_.gate().Cut();
  while (lease->Read(&response)) EXPECT_FALSE(response.has_released());
  EXPECT_EQ(ErrorReason(FromGrpcStatus(lease->Finish())), "DRAINING");
}

TEST_F(WorkerPairTest, ACancelledPrefillGivesItsBlocksBack) {
  v1::PrefillRequest prefill;
  *prefill.mutable_request() = ToProto(MakeRequest(1, 500, 5));
  for (int reads = 0; reads < 5; ++reads) {
    prefill.mutable_request()->mutable_id()->set_counter(reads);
    grpc::ClientContext context;
    auto lease = prefill_.stub().Prefill(&context, prefill);
    v1::PrefillResponse response;
    // Handle, some progress, the first token; never `released`.
    for (int i = 0; i < reads && !response.has_first_tokens(); ++i) {
      ASSERT_TRUE(lease->Read(&response));
    }
    context.TryCancel();
    EXPECT_EQ(lease->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
}

}  // namespace
}  // namespace baton
