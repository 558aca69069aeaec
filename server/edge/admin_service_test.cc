#include "server/edge/admin_service.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "proto/baton/v1/health.grpc.pb.h"
#include "proto/baton/v1/inference.grpc.pb.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "server/edge/grpc_status.h"
#include "server/edge/served_for_test.h"

namespace baton {
namespace {

constexpr char kToken[] = "a-token-of-operators";

enum class Caller { kAnyone, kOperator };

// Every RPC that any process serves.
const std::map<std::string, Caller>& AccessTable() {
  static const auto* const table = new std::map<std::string, Caller>{
      {"baton.v1.AdminService.Drain", Caller::kOperator},
      {"baton.v1.InferenceService.Detokenize", Caller::kAnyone},
      {"baton.v1.InferenceService.Generate", Caller::kAnyone},
      {"baton.v1.InferenceService.GetModelInfo", Caller::kAnyone},
      {"baton.v1.InferenceService.Tokenize", Caller::kAnyone},
      {"baton.v1.WorkerService.Abort", Caller::kAnyone},
      {"baton.v1.WorkerService.Decode", Caller::kAnyone},
      {"baton.v1.WorkerService.GetLoad", Caller::kAnyone},
      {"baton.v1.WorkerService.GetWorkerInfo", Caller::kAnyone},
      {"baton.v1.WorkerService.Prefill", Caller::kAnyone},
      {"baton.v1.WorkerService.WatchLoad", Caller::kAnyone},
      {"grpc.health.v1.Health.Check", Caller::kAnyone},
      {"grpc.health.v1.Health.Watch", Caller::kAnyone},
      {"grpc.reflection.v1alpha.ServerReflection.ServerReflectionInfo",
       Caller::kAnyone}};
  return *table;
}

std::vector<const google::protobuf::FileDescriptor*> FilesOfServices() {
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();  // Is linked.
  return {v1::DrainRequest::descriptor()->file(),
          v1::GenerateRequest::descriptor()->file(),
          v1::GetLoadRequest::descriptor()->file(),
          grpc::health::v1::HealthCheckRequest::descriptor()->file(),
          google::protobuf::DescriptorPool::generated_pool()
              ->FindFileContainingSymbol(
                  "grpc.reflection.v1alpha.ServerReflection")};
}

std::vector<std::string> MethodsOfEveryService() {
  std::vector<std::string> methods;
  for (const auto* file : FilesOfServices()) {
    CHECK(file != nullptr);
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.push_back(file->service(s)->method(m)->full_name());
      }
    }
  }
  return methods;
}

TEST(AccessTableTest, ListsEveryRpcOfEveryServedService) {
  std::vector<std::string> listed;
  for (const auto& [method, caller] : AccessTable()) listed.push_back(method);
  EXPECT_THAT(MethodsOfEveryService(),
              ::testing::UnorderedElementsAreArray(listed));
}

class AdminServiceTest : public ::testing::Test {
 protected:
  ~AdminServiceTest() override {
    if (served_ != nullptr) served_->server->Shutdown();
  }

  // Everybody calls from `peer`.
  void Serve(const std::string& peer, const std::string& token_file) {
    service_ = std::make_unique<AdminService>(AdminOptions{
        .token_file = token_file,
        .drain =
            [this](std::optional<absl::Duration> grace,
                   const AdminOptions::Begun& begun) {
              graces_.push_back(grace);
              begun(7);
            },
        .peer_of =
            [peer](const grpc::CallbackServerContext&) { return peer; }});
    served_ = std::make_unique<ServedForTest>(service_.get());
    channel_ = grpc::CreateChannel(served_->endpoint,
                                   grpc::InsecureChannelCredentials());
  }

  // Any RPC, with an empty request.
  grpc::Status Call(const std::string& method, const std::string& token) {
    grpc::ClientContext context;
    if (!token.empty()) {
      context.AddMetadata("authorization", "Bearer " + token);
    }
    std::string path = "/" + method;
    path[path.rfind('.')] = '/';
    grpc::CompletionQueue queue;
    grpc::TemplatedGenericStub<v1::DrainRequest, v1::DrainResponse> stub(
        channel_);
    const auto call =
        stub.PrepareUnaryCall(&context, path, v1::DrainRequest(), &queue);
    call->StartCall();
    v1::DrainResponse response;
    grpc::Status status;
    call->Finish(&response, &status, this);
    void* tag = nullptr;
    bool is_done = false;
    EXPECT_TRUE(queue.Next(&tag, &is_done) && is_done);
    return status;
  }

  grpc::Status Drain(const v1::DrainRequest& request,
                     v1::DrainResponse* response) {
    grpc::ClientContext context;
    return v1::AdminService::NewStub(channel_)->Drain(&context, request,
                                                      response);
  }

  std::string TokenFile() {
    const std::string path = ::testing::TempDir() + "operators_token";
    std::ofstream(path) << kToken << "\n";
    EXPECT_EQ(chmod(path.c_str(), 0400), 0);
    return path;
  }

  std::vector<std::optional<absl::Duration>> graces_;
  std::unique_ptr<AdminService> service_;
  std::unique_ptr<ServedForTest> served_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(AdminServiceTest, WhatIsForOperatorsIsRefusedToEverybodyElse) {
  using enum grpc::StatusCode;
  struct Case {
    std::string peer;
    bool has_token_file;
    std::string token;
    grpc::StatusCode code;
  };
  const std::vector<Case> cases = {
      {"ipv4:10.0.0.9:1", false, "", PERMISSION_DENIED},
      {"ipv4:10.0.0.9:1", true, "", UNAUTHENTICATED},
      {"ipv4:10.0.0.9:1", true, "a-token-of-operatorz", UNAUTHENTICATED},
      {"ipv4:127.0.0.1:1", true, "a-token-of-operatorz", UNAUTHENTICATED},
      {"ipv4:10.0.0.9:1", true, kToken, OK},
      {"unix:/run/baton", false, "", OK},
      {"ipv6:%5B::1%5D:1", false, "", OK}};
  for (const Case& c : cases) {
    Serve(c.peer, c.has_token_file ? TokenFile() : "");
    for (const auto& [method, caller] : AccessTable()) {
      if (caller != Caller::kOperator) continue;
      EXPECT_EQ(Call(method, c.token).error_code(), c.code)
          << method << " from " << c.peer << " with '" << c.token << "'";
    }
    EXPECT_EQ(graces_.size(), c.code == OK ? 1u : 0u);
    graces_.clear();
    served_->server->Shutdown();
  }
}

TEST_F(AdminServiceTest, TheGraceIsPassedOnAndItsBoundsAreKept) {
  Serve("unix:", "");
  v1::DrainRequest request;
  v1::DrainResponse response;
  ASSERT_TRUE(Drain(request, &response).ok());
  EXPECT_EQ(response.running_requests(), 7u);
  request.mutable_grace()->set_seconds(3599);
  request.mutable_grace()->set_nanos(999'999'999);
  ASSERT_TRUE(Drain(request, &response).ok());
  request.mutable_grace()->Clear();
  ASSERT_TRUE(Drain(request, &response).ok());
  EXPECT_EQ(graces_, (std::vector<std::optional<absl::Duration>>{
                         std::nullopt, absl::Hours(1) - absl::Nanoseconds(1),
                         absl::ZeroDuration()}));
  for (const auto& [seconds, nanos] :
       std::vector<std::pair<int64_t, int32_t>>{{-1, 0},
                                                {0, -1},
                                                {1, -1},
                                                {3600, 1},
                                                {0, 1'000'000'000},
                                                {INT64_MAX, 0},
                                                {INT64_MIN, 0}}) {
    request.mutable_grace()->set_seconds(seconds);
    request.mutable_grace()->set_nanos(nanos);
    EXPECT_EQ(Drain(request, &response).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << seconds << " " << nanos;
  }
  EXPECT_EQ(graces_.size(), 3u);
}

TEST_F(AdminServiceTest, AnotherProcessThanTheOneMeantIsLeftAlone) {
  Serve("unix:", "");
  v1::DrainRequest request;
  v1::DrainResponse response;
  ASSERT_TRUE(Drain(request, &response).ok());
  request.set_process(response.process());
  ASSERT_TRUE(Drain(request, &response).ok());
  request.set_process(response.process() + 1);
  const grpc::Status refused = Drain(request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(ErrorReason(FromGrpcStatus(refused)), "OTHER_PROCESS");
  EXPECT_EQ(graces_.size(), 2u);
}

}  // namespace
}  // namespace baton
