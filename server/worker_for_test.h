// Workers as batond makes them, but for the model and the transport.
#ifndef BATON_SERVER_WORKER_FOR_TEST_H_
#define BATON_SERVER_WORKER_FOR_TEST_H_

#include <grpcpp/grpcpp.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/loopback_transport.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "server/edge/grpc_limits.h"
#include "server/edge/request_gate.h"
#include "server/edge/stream_budget.h"
#include "server/engine_loop.h"
#include "server/group_metrics.h"
#include "server/worker_metrics.h"
#include "server/worker_service.h"
#include "server/worker_stream_for_test.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {

inline constexpr FakeModelRunner::Options kModel = {.max_context_tokens = 1024};

class TestWorker {
 public:
  struct Options {
    v1::WorkerRole role = v1::WORKER_ROLE_UNIFIED;
    EngineOptions engine = {};
    uint32_t num_blocks = 64;
    FakeModelRunner::Options model = kModel;
    std::unique_ptr<Transport> transport = nullptr;
    const GroupMetrics* group = nullptr;
    StreamLimits streams = {};
    // What it says of itself, if not the least.
    std::optional<v1::GetWorkerInfoResponse> info = std::nullopt;
  };

  explicit TestWorker(Options options)
      : rank_({.engine = options.engine,
               .model = options.model,
               .num_blocks = options.num_blocks},
              &clock_, std::move(options.transport)),
        streams_(options.streams),
        metrics_(&registry_, "test"),
        loop_(std::make_unique<EngineLoop>(&rank_.engine(), &rank_.stream(),
                                           rank_.agent())),
        service_(options.info.value_or(Info(options.role)),
                 {.engines = {&rank_.engine()},
                  .clock = &clock_,
                  .gate = &gate_,
                  .metrics = &metrics_,
                  .streams = &streams_,
                  .group = options.group}) {
    int port = 0;
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    SetGrpcLimits(&builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
    stub_ = v1::WorkerService::NewStub(
        grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }

  // Everything must have come back: blocks, requests, calls.
  ~TestWorker() {
    server_->Shutdown();
    server_->Wait();
    EXPECT_EQ(gate_.inside(), 0u);
    loop_.reset();
    EXPECT_TRUE(rank_.engine().idle());
    EXPECT_EQ(rank_.engine().load().free_blocks,
              rank_.engine().load().total_blocks);
  }

  const std::string& address() const { return address_; }
  v1::WorkerService::Stub& stub() { return *stub_; }
  v1::GetLoadResponse GetLoad() {
    grpc::ClientContext context;
    v1::GetLoadResponse load;
    EXPECT_TRUE(stub_->GetLoad(&context, v1::GetLoadRequest(), &load).ok());
    return load;
  }
  LLMEngine& engine() { return rank_.engine(); }
  RequestGate& gate() { return gate_; }
  StreamBudget& streams() { return streams_; }
  SimulatedClock& clock() { return clock_; }
  // As /metrics gives it.
  std::string Metrics() {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

 private:
  static v1::GetWorkerInfoResponse Info(v1::WorkerRole role) {
    v1::GetWorkerInfoResponse info;
    info.set_role(role);
    info.set_fingerprint("fake");
    return info;
  }

  SimulatedClock clock_;
  FakeRank rank_;
  RequestGate gate_;
  StreamBudget streams_;
  prometheus::Registry registry_;
  WorkerMetrics metrics_;
  std::unique_ptr<EngineLoop> loop_;
  WorkerService service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
};

// A prefill and a decode worker.
class WorkerPairTest : public ::testing::Test {
 protected:
  // Prefill and then decode, as the router would; the first sample.
  Received Generate(const GenerationRequest& request) {
    return GenerateSamples(request)[request.sample_index];
  }

  // By their indices.
  std::map<uint32_t, Received> GenerateSamples(
      const GenerationRequest& request) {
    grpc::ClientContext context;
    v1::PrefillResponse response;
    const auto lease = OpenLease(request, &context, &response);
    v1::DecodeRequest decode = DecodeOf(request);
    decode.set_kv_handle(response.kv_handle());
    auto got = DecodeSamples(&decode_.stub(), decode);
    bool released = false;
    std::vector<uint32_t> first;
    while (lease->Read(&response)) {
      released |= response.has_released();
      const auto& ids = response.first_tokens().token_ids();
      first.insert(first.end(), ids.begin(), ids.end());
    }
    EXPECT_TRUE(lease->Finish().ok());
    EXPECT_TRUE(released);
    EXPECT_EQ(first, std::vector{got[request.sample_index].tokens.at(0)});
    return got;
  }

  // A prefill call that has sent its handle.
  std::unique_ptr<grpc::ClientReader<v1::PrefillResponse>> OpenLease(
      const GenerationRequest& request, grpc::ClientContext* context,
      v1::PrefillResponse* handle) {
    v1::PrefillRequest prefill;
    *prefill.mutable_request() = ToProto(request);
    auto lease = prefill_.stub().Prefill(context, prefill);
    EXPECT_TRUE(lease->Read(handle));
    EXPECT_TRUE(handle->has_kv_handle());
    return lease;
  }

  LoopbackNetwork network_;
  TestWorker prefill_{{.role = v1::WORKER_ROLE_PREFILL,
                       .transport = network_.CreateEndpoint("prefill", {})}};
  TestWorker decode_{{.role = v1::WORKER_ROLE_DECODE,
                      .transport = network_.CreateEndpoint("decode", {})}};
};

}  // namespace baton

#endif  // BATON_SERVER_WORKER_FOR_TEST_H_
