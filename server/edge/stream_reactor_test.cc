#include "server/edge/stream_reactor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "proto/baton/v1/health.grpc.pb.h"
#include "server/edge/served_for_test.h"

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

HealthCheckResponse Message(int status) {
  HealthCheckResponse response;
  response.set_status(
      static_cast<HealthCheckResponse::ServingStatus>(status % 4));
  return response;
}

// A stream whose producer is the test.
class Stream final : public StreamReactor<HealthCheckResponse, Traits> {
 public:
  Stream(grpc::CallbackServerContext* context, StreamBudget* budget,
         absl::Notification* gone, absl::Notification* over)
      : StreamReactor(context, budget), gone_(gone), over_(over) {}

  void AwaitFlow(bool paused) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(
        absl::Condition(this, paused ? &Stream::IsPaused : &Stream::GoesOn));
  }
  using StreamReactor::is_cut;

 private:
  bool IsPaused() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return paused_;
  }
  bool GoesOn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !paused_; }

  void OnPeerGone() override { gone_->Notify(); }
  void OnFlow(bool paused) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_NE(paused_, paused);
    paused_ = paused;
  }
  void OnCallOver() override { over_->Notify(); }

  absl::Notification* const gone_;
  absl::Notification* const over_;
  absl::Mutex mutex_;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
};

// One Watch call served by `produce` on a thread of its own.
class StreamReactorTest : public ::testing::Test,
                          public Health::CallbackService {
 protected:
  void SetUp() override {
    // What it takes without being read stays the same.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stub_ = Health::NewStub(grpc::CreateCustomChannel(
        served_.endpoint, grpc::InsecureChannelCredentials(), arguments));
  }
  void TearDown() override {
    over_.WaitForNotification();
    producer_.join();
  }

  grpc::ServerWriteReactor<HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const HealthCheckRequest*) override {
    auto* stream = new Stream(context, &budget_, &gone_, &over_);
    producer_ = std::thread([this, stream] { produce_(stream); });
    return stream;
  }

  StreamBudget budget_{{.max_bytes = 1 << 20}};
  std::function<void(Stream*)> produce_;
  absl::Notification gone_;
  absl::Notification over_;
  std::thread producer_;
  ServedForTest served_{this};
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

// Sends until a pause; how many.
int SendUntilPaused(Stream* stream, const StreamBudget& budget) {
  int sent = 0;
  for (; budget.counts().paused == 0; ++sent) stream->Send(Message(sent));
  stream->AwaitFlow(true);
  return sent;
}

// Reads to the end; how many there were.
int ReadAll(grpc::ClientReader<HealthCheckResponse>* reader) {
  HealthCheckResponse response;
  int received = 0;
  while (reader->Read(&response)) {
    EXPECT_EQ(response.status(), received % 4);
    ++received;
  }
  return received;
}

TEST_F(StreamReactorTest, AReaderThatGoesOnReadingGetsAllBehindEachPause) {
  absl::Notification paused, sent_all;
  int sent = 0;
  produce_ = [&](Stream* stream) {
    for (uint64_t pause = 0; pause < 3; ++pause) {
      while (budget_.counts().pauses == pause) stream->Send(Message(sent++));
      if (pause == 0) {
        stream->AwaitFlow(true);
        paused.Notify();
      }
      while (budget_.counts().paused > 0) std::this_thread::yield();
    }
    sent_all.Notify();
    stream->End(absl::OkStatus());
  };
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, HealthCheckRequest());
  paused.WaitForNotification();
  const int received = ReadAll(reader.get());
  sent_all.WaitForNotification();
  EXPECT_EQ(received, sent);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(budget_.counts().pauses, 3u);
}

TEST_F(StreamReactorTest, AReaderThatDoesNotReadIsCutAndHearsWhyAtOnce) {
  int sent = 0;
  produce_ = [&](Stream* stream) {
    sent = SendUntilPaused(stream, budget_);
    for (int i = 0; i <= StreamBudget::kTicksToCut; ++i) budget_.Tick();
    gone_.WaitForNotification();
    EXPECT_TRUE(stream->is_cut());
    stream->End(absl::CancelledError("cut"));
  };
  grpc::ClientContext context;
  auto reader = stub_->Watch(&context, HealthCheckRequest());
  over_.WaitForNotification();
  const int received = ReadAll(reader.get());
  EXPECT_LT(received, sent);
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(),
            "SLOW_READER: the client took no message for 1m");
  EXPECT_EQ(budget_.counts().bytes, 0u);
}

TEST_F(StreamReactorTest, AProducerThatGoesOnAllTheSameIsCutByMemory) {
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
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(budget_.counts().cut_by_memory, 1u);
}

}  // namespace
}  // namespace baton
