#include "server/edge/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <prometheus/counter.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

namespace baton {
namespace {

using ::testing::HasSubstr;

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  return fd;
}

// The whole answer to GET `path`.
std::string Get(int port, const std::string& path) {
  const int fd = Connect(port);
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  EXPECT_EQ(write(fd, request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, got);
  }
  close(fd);
  return answer;
}

TEST(OutcomeNameTest, IsTheCodesNameInLowerCase) {
  EXPECT_EQ(OutcomeName(absl::StatusCode::kOk), "ok");
  EXPECT_EQ(OutcomeName(absl::StatusCode::kDeadlineExceeded),
            "deadline_exceeded");
}

class MetricsServerTest : public ::testing::Test {
 protected:
  void Start() {
    auto server =
        MetricsServer::Start({.address = "127.0.0.1:0",
                              .registry = &registry_,
                              .before_scrape = [this] { ++scrapes_; },
                              .ready = [this] { return ready_.load(); }});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  prometheus::Registry registry_;
  std::atomic<int> scrapes_{0};
  std::atomic<bool> ready_{false};
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, ServesTheRegistryOnAPortOfItsChoice) {
  prometheus::BuildCounter()
      .Name("baton_things_total")
      .Register(registry_)
      .Add({{"role", "decode"}})
      .Increment(3);
  Start();
  ASSERT_GT(server_->port(), 0);
  const std::string answer = Get(server_->port(), "/metrics");
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("baton_things_total{role=\"decode\"} 3"));
  EXPECT_EQ(scrapes_, 1);
}

TEST_F(MetricsServerTest, HealthIsAlwaysGoodAndReadinessIsAsked) {
  Start();
  EXPECT_THAT(Get(server_->port(), "/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(Get(server_->port(), "/readyz"), HasSubstr("503"));
  ready_ = true;
  EXPECT_THAT(Get(server_->port(), "/readyz"), HasSubstr("200 OK"));
  EXPECT_THAT(Get(server_->port(), "/metrics/x"), HasSubstr("404"));
  EXPECT_THAT(Get(server_->port(), "/../etc/passwd"), HasSubstr("404"));
}

TEST(MetricsServerLiveTest, HealthzSaysWhetherTheProcessLives) {
  const prometheus::Registry registry;
  bool live = true;
  const auto server = MetricsServer::Start({.registry = &registry,
                                            .ready = [] { return true; },
                                            .live = [&] { return live; }});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get((*server)->port(), "/healthz"), HasSubstr("200 OK"));
  live = false;
  EXPECT_THAT(Get((*server)->port(), "/healthz"),
              AllOf(HasSubstr("503"), HasSubstr("stuck")));
}

TEST_F(MetricsServerTest, ATakenPortIsAnError) {
  Start();
  const auto second = MetricsServer::Start(
      {.address = "127.0.0.1:" + std::to_string(server_->port()),
       .registry = &registry_,
       .ready = [] { return true; }});
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
}

TEST_F(MetricsServerTest, StopsWhileAConnectionIsIdle) {
  Start();
  Get(server_->port(), "/metrics");
  const int idle = Connect(server_->port());
  const auto start = std::chrono::steady_clock::now();
  server_.reset();
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - start;
  RecordProperty("stop_seconds", std::to_string(took.count()));
  std::printf("stopped in %.3f s\n", took.count());
  close(idle);
}

TEST_F(MetricsServerTest, IdleConnectionsDoNotKeepAProbeWaiting) {
  Start();
  std::vector<pollfd> idle(8);
  for (pollfd& connection : idle) {
    connection = {Connect(server_->port()), POLLIN, 0};
  }
  EXPECT_THAT(Get(server_->port(), "/healthz"), HasSubstr("200 OK"));
  // Answered before any of them had to be dropped.
  EXPECT_EQ(poll(idle.data(), idle.size(), 0), 0);
  for (const pollfd& connection : idle) close(connection.fd);
}

TEST(HistogramBatchTest, FlushesWhatSingleObservationsWouldHaveGiven) {
  const prometheus::Histogram::BucketBoundaries bounds = {1, 2, 5};
  prometheus::Histogram one_by_one(bounds);
  prometheus::Histogram batched(bounds);
  HistogramBatch batch(bounds);
  for (const double value : {0.5, 1.0, 1.5, 2.0, 4.0, 5.0, 5.5, 100.0}) {
    one_by_one.Observe(value);
    batch.Observe(value);
  }
  batch.FlushTo(&batched);
  batch.FlushTo(&batched);
  const auto want = one_by_one.Collect().histogram;
  const auto got = batched.Collect().histogram;
  EXPECT_EQ(got.sample_count, want.sample_count);
  EXPECT_EQ(got.sample_sum, want.sample_sum);
  ASSERT_EQ(got.bucket.size(), want.bucket.size());
  for (size_t i = 0; i < want.bucket.size(); ++i) {
    EXPECT_EQ(got.bucket[i].cumulative_count, want.bucket[i].cumulative_count)
        << i;
  }
}

}  // namespace
}  // namespace baton
