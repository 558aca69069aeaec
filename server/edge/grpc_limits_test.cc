// Over real connections within the process.
#include "server/edge/grpc_limits.h"

#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/health.grpc.pb.h"

namespace baton {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr int kMiB = 1024 * 1024;
constexpr absl::Duration kLongest = absl::Seconds(60);

// The most memory that this process has had, in bytes, since ForgetPeak.
int64_t PeakMemory() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != "VmHWM:") {
  }
  int64_t kib = 0;
  status >> kib;
  return kib * 1024;
}
void ForgetPeak() { std::ofstream("/proc/self/clear_refs") << 5; }

// A stream that says one thing, then nothing.
class QuietStream final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  explicit QuietStream(absl::Notification* gone) : gone_(gone) {
    StartWrite(&response_);
  }
  void OnCancel() override {
    gone_->Notify();
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  absl::Notification* const gone_;
  const HealthCheckResponse response_;
};

class Service final : public Health::CallbackService {
 public:
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const HealthCheckRequest*,
                                  HealthCheckResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerWriteReactor<HealthCheckResponse>* Watch(
      grpc::CallbackServerContext*, const HealthCheckRequest*) override {
    return new QuietStream(&watcher_gone_);
  }
  absl::Notification& watcher_gone() { return watcher_gone_; }

 private:
  absl::Notification watcher_gone_;
};

class Server final {
 public:
  enum class Limits { kOurs, kOfGrpc };
  explicit Server(Limits limits, const GrpcKeepalive& keepalive = {}) {
    grpc::ServerBuilder builder;
    if (limits == Limits::kOurs) SetGrpcLimits(&builder, keepalive);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    CHECK(server_ != nullptr);
  }
  ~Server() { server_->Shutdown(std::chrono::system_clock::now()); }

  int port() const { return port_; }
  Service& service() { return service_; }

 private:
  Service service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

std::shared_ptr<grpc::Channel> Connect(
    int port, const grpc::ChannelArguments& arguments = {}) {
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                   grpc::InsecureChannelCredentials(),
                                   arguments);
}

grpc::Status Check(Health::Stub* stub, grpc::ClientContext* context,
                   size_t name_bytes) {
  HealthCheckRequest request;
  request.set_service(std::string(name_bytes, '\0'));
  HealthCheckResponse response;
  context->set_wait_for_ready(true);  // gRPC may have ended the connection.
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::seconds(60));
  return stub->Check(context, request, &response);
}

TEST(GrpcLimitsTest, AMessageMayHaveItsBytesAndNotOneMore) {
  Server server(Server::Limits::kOurs);
  const auto stub = Health::NewStub(Connect(server.port()));
  size_t at_limit = kMaxGrpcMessageBytes;
  HealthCheckRequest request;
  request.set_service(std::string(at_limit, '\0'));
  at_limit -= request.ByteSizeLong() - at_limit;
  for (const size_t more : {0, 1, kMiB}) {
    grpc::ClientContext context;
    const grpc::Status status = Check(stub.get(), &context, at_limit + more);
    EXPECT_EQ(status.error_code(), more == 0
                                       ? grpc::StatusCode::OK
                                       : grpc::StatusCode::RESOURCE_EXHAUSTED)
        << more << ' ' << status.error_message();
  }
}

TEST(GrpcLimitsTest, MetadataBeyondTheirBytesAreRefusedWhateverTheirSize) {
  Server server(Server::Limits::kOurs);
  const auto check = [&server](size_t bytes) {
    grpc::ChannelArguments arguments;  // A connection of its own.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = Health::NewStub(Connect(server.port(), arguments));
    grpc::ClientContext context;
    context.AddMetadata("x-much", std::string(bytes, 'x'));
    return Check(stub.get(), &context, 1).error_code();
  };
  EXPECT_EQ(check(8 * 1024), grpc::StatusCode::OK);
  EXPECT_EQ(check(64 * 1024), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // So far beyond, gRPC may end the connection instead. Farther still it takes
  // a time that grows with the square.
  const grpc::StatusCode far_beyond = check(kMiB);
  EXPECT_TRUE(far_beyond == grpc::StatusCode::RESOURCE_EXHAUSTED ||
              far_beyond == grpc::StatusCode::UNAVAILABLE)
      << far_beyond;
  EXPECT_EQ(check(8 * 1024), grpc::StatusCode::OK);
}

TEST(GrpcLimitsTest, WhoConnectsAndSaysNothingIsLetGo) {
  Server server(Server::Limits::kOurs, {.handshake_milliseconds = 50});
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
      0);
  const timeval longest = {.tv_sec = absl::ToInt64Seconds(kLongest),
                           .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof(longest));
  std::array<char, 4096> said;
  ssize_t length = 0;
  while ((length = read(fd, said.data(), said.size())) > 0) {
  }
  EXPECT_TRUE(length == 0 || errno == ECONNRESET) << errno;
  close(fd);
}

// A call of any kind of bytes.
grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel,
                     grpc::ClientContext* context, grpc::ByteBuffer* request) {
  grpc::GenericStub stub(channel);
  grpc::ByteBuffer response;
  grpc::Status status;
  absl::Notification done;
  stub.UnaryCall(context, "/grpc.health.v1.Health/Check", {}, request,
                 &response, [&](grpc::Status ended) {
                   status = std::move(ended);
                   done.Notify();
                 });
  done.WaitForNotification();
  return status;
}

TEST(GrpcLimitsTest, ABombOfCompressedBytesIsNeverUnpacked) {
  constexpr int64_t kUnpackedBytes = 256 * kMiB;
  Server server(Server::Limits::kOurs);
  const auto channel = Connect(server.port());
  {
    // The client's own part: what it packs.
    const grpc::Slice zeros(static_cast<size_t>(kUnpackedBytes));
    grpc::ByteBuffer request(&zeros, 1);
    grpc::ClientContext context;
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    ForgetPeak();
    const int64_t before = PeakMemory();
    const grpc::Status status = CallRaw(channel, &context, &request);
    const int64_t took = PeakMemory() - before;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED)
        << status.error_message();
    std::cerr << "unpacked " << kUnpackedBytes << " bytes, peak rose by "
              << took << '\n';
    EXPECT_LT(took, kUnpackedBytes / 4);
  }
  const auto stub = Health::NewStub(channel);
  grpc::ClientContext context;
  EXPECT_TRUE(Check(stub.get(), &context, 1).ok());
}

// Between a client and a server, until it passes nothing on, nor ends.
class Wire final {
 public:
  explicit Wire(int server_port) : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    CHECK_EQ(bind(listener_, any, size), 0);
    CHECK_EQ(listen(listener_, 1), 0);
    CHECK_EQ(getsockname(listener_, any, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, server_port] { Run(server_port); });
  }
  ~Wire() {
    stop_.store(true);
    thread_.join();
    for (const int end : ends_) close(end);
    close(listener_);
  }

  int port() const { return port_; }
  void Break() { broken_.store(true); }

 private:
  void Run(int server_port) {
    ends_[0] = accept(listener_, nullptr, nullptr);
    ends_[1] = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(server_port));
    CHECK_EQ(connect(ends_[1], reinterpret_cast<sockaddr*>(&address),
                     sizeof(address)),
             0);
    while (!stop_.load()) {
      std::array<pollfd, 2> fds = {pollfd{ends_[0], POLLIN, 0},
                                   pollfd{ends_[1], POLLIN, 0}};
      poll(fds.data(), fds.size(), 10);
      for (size_t i = 0; i < fds.size() && !broken_.load(); ++i) {
        if ((fds[i].revents & POLLIN) != 0) PassOn(ends_[i], ends_[1 - i]);
      }
    }
  }
  static void PassOn(int from, int to) {
    std::array<char, 65536> bytes;
    const ssize_t count = read(from, bytes.data(), bytes.size());
    for (ssize_t done = 0; done < count;) {
      const ssize_t more = write(to, bytes.data() + done, count - done);
      if (more < 0) return;
      done += more;
    }
  }

  const int listener_;
  int port_ = 0;
  std::array<int, 2> ends_ = {-1, -1};
  std::atomic<bool> broken_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(GrpcLimitsTest, APeerThatVanishesWithoutAWordIsNoticedAtBothEnds) {
  // A busy machine may take its time to answer.
  constexpr GrpcKeepalive kSoon = {.time_milliseconds = 400,
                                   .timeout_milliseconds = 5000,
                                   .min_ping_interval_milliseconds = 100};
  Server server(Server::Limits::kOurs, kSoon);
  Wire wire(server.port());
  grpc::ChannelArguments arguments;
  SetWorkerChannelLimits(&arguments, kSoon);
  const auto stub = Health::NewStub(Connect(wire.port(), arguments));
  grpc::ClientContext context;
  const auto reader = stub->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  // Both are silent for long, and are there.
  EXPECT_FALSE(server.service().watcher_gone().WaitForNotificationWithTimeout(
      absl::Seconds(2)));
  wire.Break();
  const absl::Time start = absl::Now();
  EXPECT_TRUE(
      server.service().watcher_gone().WaitForNotificationWithTimeout(kLongest));
  std::cerr << "noticed within " << absl::Now() - start << '\n';
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// A client that pings every second on a stream that says nothing; how its call
// ends within eight.
grpc::Status WatchPinging(const Server& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 30'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  const auto stub = Health::NewStub(Connect(server.port(), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::seconds(8));
  const auto reader = stub->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  while (reader->Read(&response)) {
  }
  return reader->Finish();
}

TEST(GrpcLimitsTest, PingsAtTwiceTheAllowedIntervalCutNoStream) {
  static_assert(kServerKeepalive.min_ping_interval_milliseconds * 2 <= 10'000);
  static_assert(kWorkerKeepalive.time_milliseconds >=
                2 * kServerKeepalive.min_ping_interval_milliseconds);
  const Server server(Server::Limits::kOurs,
                      {.min_ping_interval_milliseconds = 500});
  EXPECT_EQ(WatchPinging(server).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
}

// What the one above is for.
TEST(GrpcLimitsTest, OfItselfGrpcCutsThem) {
  const Server server(Server::Limits::kOfGrpc);
  const grpc::Status status = WatchPinging(server);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE)
      << status.error_message();
}

}  // namespace
}  // namespace baton
