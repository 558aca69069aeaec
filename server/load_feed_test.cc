// The feed over a real channel, with a clock and a load that the test moves.
#include "server/load_feed.h"

#include <grpcpp/grpcpp.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "server/edge/grpc_status.h"
#include "server/edge/served_for_test.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);

class FeedService final : public v1::WorkerService::CallbackService {
 public:
  explicit FeedService(LoadFeed* feed) : feed_(feed) {}

  LoadFeed::Stream* WatchLoad(grpc::CallbackServerContext* context,
                              const v1::WatchLoadRequest* request) override {
    return feed_->Watch(context, *request);
  }

 private:
  LoadFeed* const feed_;
};

class LoadFeedTest : public ::testing::Test {
 protected:
  // One reader's stream.
  struct Reader {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GetLoadResponse>> stream;

    // -1: the stream has ended.
    int64_t Read() {
      v1::GetLoadResponse load;
      return stream->Read(&load) ? int64_t{load.running_requests()} : -1;
    }
    absl::Status Finish() {
      while (Read() >= 0) {
      }
      return FromGrpcStatus(stream->Finish());
    }
    void Cancel() {
      context.TryCancel();
      EXPECT_TRUE(absl::IsCancelled(Finish()));
    }
  };

  LoadFeedTest() {
    stub_ = v1::WorkerService::NewStub(grpc::CreateChannel(
        served_.endpoint, grpc::InsecureChannelCredentials()));
  }
  // Its streams have ended by then.
  ~LoadFeedTest() override {
    served_.server->Shutdown();
    served_.server->Wait();
  }

  std::unique_ptr<Reader> Watch(std::optional<double> min_interval = {}) {
    auto reader = std::make_unique<Reader>();
    v1::WatchLoadRequest request;
    if (min_interval.has_value()) {
      request.set_min_interval_seconds(*min_interval);
    }
    reader->stream = stub_->WatchLoad(&reader->context, request);
    return reader;
  }

  // Returns once the feed has looked at it.
  void SetRunning(uint32_t running) {
    absl::MutexLock lock(&mutex_);
    running_ = running;
    const int64_t end = num_looks_ + 1;
    const auto looked = [this, end]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return num_looks_ >= end;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&looked), kDeadline));
  }
  v1::GetLoadResponse Look() {
    absl::MutexLock lock(&mutex_);
    ++num_looks_;
    v1::GetLoadResponse load;
    load.set_running_requests(running_);
    load.add_ranks()->set_running_requests(running_);
    load.mutable_ranks(0)->set_decode_steps(num_looks_);  // Moves always.
    return load;
  }

  absl::Mutex mutex_;
  uint32_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_looks_ ABSL_GUARDED_BY(mutex_) = 0;
  SimulatedClock clock_;
  RequestGate gate_;
  StreamBudget streams_{{}};
  LoadFeed feed_{&clock_, &gate_, &streams_, [this] { return Look(); }};
  FeedService service_{&feed_};
  ServedForTest served_{&service_};
  std::unique_ptr<v1::WorkerService::Stub> stub_;
};

TEST_F(LoadFeedTest, TellsTheLoadAtOnceAndEachChange) {
  const auto reader = Watch();
  EXPECT_EQ(reader->Read(), 0);
  for (int i = 1; i < 20; ++i) {
    SetRunning(i % 3);
    feed_.OnRequest();
    clock_.Advance(absl::Milliseconds(10));
    EXPECT_EQ(reader->Read(), i % 3);
  }
  reader->Cancel();
}

TEST_F(LoadFeedTest, TellsNothingBeforeTheIntervalIsOverAndThenTheNewest) {
  const auto reader = Watch(0.25);
  EXPECT_EQ(reader->Read(), 0);
  SetRunning(1);
  clock_.Advance(absl::Milliseconds(249));
  SetRunning(2);
  SetRunning(3);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(reader->Read(), 3) << "1 and 2 were seen and not told";
  reader->Cancel();
}

TEST_F(LoadFeedTest, EachWatcherHasItsInterval) {
  const auto slow = Watch(0.4);
  const auto fast = Watch(0.001);
  EXPECT_EQ(slow->Read(), 0);
  EXPECT_EQ(fast->Read(), 0);
  for (int i = 1; i < 400; i += 100) {
    SetRunning(i);
    clock_.Advance(absl::Milliseconds(100));
    EXPECT_EQ(fast->Read(), i);
  }
  EXPECT_EQ(slow->Read(), 301);
  slow->Cancel();
  fast->Cancel();
}

TEST_F(LoadFeedTest, GivesASignOfLifeWhenNothingChanges) {
  const auto reader = Watch();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(reader->Read(), 0);
    clock_.Advance(absl::Seconds(1));
  }
  // Long idle: it looks seldom, until there is a request.
  SetRunning(5);
  feed_.OnRequest();
  int64_t told = 0;
  for (int i = 0; i < 3 && told == 0; ++i) {
    told = reader->Read();
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(told, 5);
  reader->Cancel();
}

TEST_F(LoadFeedTest, EndsWithTheDrainWithoutHoldingItUp) {
  const auto reader = Watch();
  EXPECT_EQ(reader->Read(), 0);
  EXPECT_EQ(gate_.inside(), 0u);
  gate_.Close();
  absl::Status status = reader->Finish();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(ErrorReason(status), "DRAINING");
  status = Watch()->Finish();
  EXPECT_EQ(ErrorReason(status), "DRAINING") << "so do later ones";
}

TEST_F(LoadFeedTest, HasSoManyWatchersAndTheDeadOnesGo) {
  std::vector<std::unique_ptr<Reader>> readers;
  for (size_t i = 0; i < kMaxLoadWatchers; ++i) {
    readers.push_back(Watch());
    EXPECT_EQ(readers.back()->Read(), 0);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(Watch()->Finish()));
  readers[7]->Cancel();
  // Its place is free soon after.
  do {
    readers[7] = Watch();
  } while (readers[7]->Read() < 0);
  for (const auto& reader : readers) reader->Cancel();
}

TEST_F(LoadFeedTest, RefusesAnIntervalOutOfItsBounds) {
  for (const double seconds :
       {0.0, -1.0, 0.0009, 1.001, std::numeric_limits<double>::quiet_NaN(),
        std::numeric_limits<double>::infinity()}) {
    const absl::Status status = Watch(seconds)->Finish();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << seconds;
    EXPECT_EQ(status.message(), "min_interval_seconds: must be 0.001 .. 1");
  }
}

}  // namespace
}  // namespace baton
