// A prefill worker that drains while what it exported waits for its readers.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "server/edge/grpc_status.h"
#include "server/worker_for_test.h"
#include "server/worker_stream_for_test.h"
#include "tests/fakes/fake_rank.h"

namespace baton {
namespace {

constexpr uint64_t kExports = 50;

struct Lease {
  explicit Lease(uint64_t counter) : request(MakeRequest(counter, 40, 8)) {}

  const GenerationRequest request;
  grpc::ClientContext context;
  v1::PrefillResponse handle;
  std::unique_ptr<grpc::ClientReader<v1::PrefillResponse>> reader;
};

class WorkerDrainTest : public WorkerPairTest {
 protected:
  // Exports that nobody has begun to pull.
  std::vector<std::unique_ptr<Lease>> OpenLeases() {
    std::vector<std::unique_ptr<Lease>> leases;
    for (uint64_t i = 0; i < kExports; ++i) {
      auto lease = std::make_unique<Lease>(i);
      lease->reader =
          OpenLease(lease->request, &lease->context, &lease->handle);
      leases.push_back(std::move(lease));
    }
    return leases;
  }
};

TEST_F(WorkerDrainTest, FiftyUnpulledExportsOutliveTheStartOfADrain) {
  const auto leases = OpenLeases();
  prefill_.gate().Close();
  EXPECT_EQ(prefill_.gate().inside(), kExports);

  grpc::ClientContext context;
  v1::PrefillRequest late;
  *late.mutable_request() = ToProto(MakeRequest(kExports, 40, 8));
  const absl::Status refused =
      FromGrpcStatus(prefill_.stub().Prefill(&context, late)->Finish());
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(ErrorReason(refused), "DRAINING");
  EXPECT_TRUE(RetryDelay(refused).has_value());

  for (const auto& lease : leases) {
    v1::DecodeRequest decode = DecodeOf(lease->request);
    decode.set_kv_handle(lease->handle.kv_handle());
    const Received received = Decode(&decode_.stub(), decode);
    EXPECT_TRUE(received.status.ok()) << received.status;
    EXPECT_EQ(received.tokens, ExpectedOf(kModel, lease->request).tokens);
    v1::PrefillResponse response;
    bool released = false;
    while (lease->reader->Read(&response)) released |= response.has_released();
    EXPECT_TRUE(released);
    EXPECT_TRUE(lease->reader->Finish().ok());
  }
}

// The clock does not move: no lease ends by itself.
TEST_F(WorkerDrainTest, WhatIsLeftWhenTheGraceEndsIsRetryable) {
  const auto leases = OpenLeases();
  prefill_.gate().Close();
  prefill_.gate().Cut();
  for (const auto& lease : leases) {
    v1::PrefillResponse response;
    while (lease->reader->Read(&response)) {
    }
    const absl::Status cut = FromGrpcStatus(lease->reader->Finish());
    EXPECT_TRUE(absl::IsUnavailable(cut)) << cut;
    EXPECT_EQ(ErrorReason(cut), "DRAINING");
  }
}

}  // namespace
}  // namespace baton
