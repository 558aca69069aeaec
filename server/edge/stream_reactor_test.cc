#include "server/edge/stream_reactor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "proto/baton/v1/health.grpc.pb.h"

namespace baton {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

struct Traits {
  static bool Merge(HealthCheckResponse*, HealthCheckResponse&) {
    return false;
  }
  static size_t Bytes(const HealthCheckResponse&) { return 64; }
};

// A stream whose producer is the test.
class Stream final : public StreamReactor<HealthCheckResponse, Traits> {
 public:
  Stream(grpc::CallbackServerContext* context, absl::Notification* gone,
         absl::Notification* over)
      : StreamReactor(context), gone_(gone), over_(over) {}

 private:
  void OnPeerGone() override { gone_->Notify(); }
  void OnCallOver() override { over_->Notify(); }

  absl::Notification* const gone_;
  absl::Notification* const over_;
};

// One Watch call served by `produce` on a thread of its own.
class StreamReactorTest : public ::testing::Test,
                          public Health::CallbackService {
 protected:
  void SetUp() override {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    stub_ = Health::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                            grpc::InsecureChannelCredentials()));
  }
  void TearDown() override {
    over_.WaitForNotification();
    producer_.join();
  }

  grpc::ServerWriteReactor<HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const HealthCheckRequest*) override {
    auto* stream = new Stream(context, &gone_, &over_);
    producer_ = std::thread([this, stream] { produce_(stream); });
    return stream;
  }

  static HealthCheckResponse Message(int status) {
    HealthCheckResponse response;
    response.set_status(
        static_cast<HealthCheckResponse::ServingStatus>(status % 4));
    return response;
  }

  std::function<void(Stream*)> produce_;
  absl::Notification gone_;
  absl::Notification over_;
  std::thread producer_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Health::Stub> stub_;
};

TEST_F(StreamReactorTest, DeliversEverythingAndThenTheStatusWithItsDetails) {
  produce_ = [](Stream* stream) {
    for (int i = 0; i < 1000; ++i) stream->Send(Message(i));
    stream->End(WithRetryDelay(absl::ResourceExhaustedError("that is all"),
                               absl::Seconds(3)));
  };
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  int received = 0;
  while (reader->Read(&response)) {
    EXPECT_EQ(response.status(), received % 4);
    ++received;
  }
  const absl::Status status = FromGrpcStatus(reader->Finish());
  EXPECT_EQ(received, 1000);
  EXPECT_EQ(status.message(), "that is all");
  EXPECT_EQ(RetryDelay(status), absl::Seconds(3));
}

TEST_F(StreamReactorTest, ACancelIsToldToTheProducerWhoEndsTheCall) {
  produce_ = [this](Stream* stream) {
    stream->Send(Message(1));
    gone_.WaitForNotification();
    stream->Send(Message(2));
    stream->End(absl::CancelledError("gone"));
  };
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(StreamReactorTest, AReaderThatDoesNotReadIsCut) {
  produce_ = [this](Stream* stream) {
    while (!gone_.HasBeenNotified()) stream->Send(Message(1));
    stream->End(absl::CancelledError("cut"));
  };
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, HealthCheckRequest());
  over_.WaitForNotification();
  HealthCheckResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace baton
