#include "server/edge/metrics.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <netinet/in.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"

namespace baton {
namespace {

// Each serves one connection, idle ones too until they time out: enough that
// port checkers do not keep a probe waiting.
constexpr char kThreads[] = "16";
// A scraper that sends nothing for so long is dropped.
constexpr char kRequestTimeoutMilliseconds[] = "1000";
constexpr std::chrono::milliseconds kNudgeInterval(5);

// Opens and closes a connection to a port of this host: at `host` if that is an
// IPv4 address.
void Connect(const std::string& host, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1 ||
      address.sin_addr.s_addr == INADDR_ANY) {
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  [[maybe_unused]] const int refused =
      connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  close(fd);
}

int Respond(mg_connection* connection, int code, const char* reason,
            const std::string& body) {
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: text/plain; version=0.0.4; "
            "charset=utf-8\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
            code, reason, body.size());
  mg_write(connection, body.data(), body.size());
  return code;
}

}  // namespace

const prometheus::Histogram::BucketBoundaries& LatencyBuckets() {
  static const auto* const buckets =
      new prometheus::Histogram::BucketBoundaries{
          0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
          0.25,   0.5,     1,      2.5,   5,      10,    25,   50,    100};
  return *buckets;
}

std::string OutcomeName(absl::StatusCode code) {
  return absl::AsciiStrToLower(absl::StatusCodeToString(code));
}

void RaiseTo(uint64_t total, prometheus::Counter* counter) {
  const double more = static_cast<double>(total) - counter->Value();
  if (more > 0) counter->Increment(more);
}

HistogramBatch::HistogramBatch(
    const prometheus::Histogram::BucketBoundaries& boundaries)
    : boundaries_(boundaries), counts_(boundaries.size() + 1) {}

void HistogramBatch::Observe(double value) {
  const auto bucket =
      std::lower_bound(boundaries_.begin(), boundaries_.end(), value);
  ++counts_[bucket - boundaries_.begin()];
  sum_ += value;
  empty_ = false;
}

void HistogramBatch::FlushTo(prometheus::Histogram* histogram) {
  if (empty_) return;
  histogram->ObserveMultiple(counts_, sum_);
  std::fill(counts_.begin(), counts_.end(), 0);
  sum_ = 0;
  empty_ = true;
}

class MetricsServer::Http {
 public:
  explicit Http(MetricsServerOptions options) : options_(std::move(options)) {}
  ~Http() {
    if (context_ == nullptr) return;
    // civetweb's accepting thread looks for the end only every 2 s, or when a
    // connection comes.
    const int port = this->port();
    const std::string host =
        options_.address.substr(0, options_.address.rfind(':'));
    std::promise<void> stopped;
    std::thread nudge([&, ended = stopped.get_future()] {
      do {
        Connect(host, port);
      } while (ended.wait_for(kNudgeInterval) == std::future_status::timeout);
    });
    mg_stop(context_);
    stopped.set_value();
    nudge.join();
  }

  absl::Status Listen() {
    const char* const settings[] = {"listening_ports",
                                    options_.address.c_str(),
                                    "num_threads",
                                    kThreads,
                                    "request_timeout_ms",
                                    kRequestTimeoutMilliseconds,
                                    nullptr};
    mg_callbacks callbacks = {};
    context_ = mg_start(&callbacks, this, const_cast<const char**>(settings));
    if (context_ == nullptr) {
      return absl::UnavailableError(
          "cannot listen on " + options_.address +
          ": no address of this host, or taken by another process; port 0 "
          "takes a free one");
    }
    mg_set_request_handler(context_, "/metrics$", &Metrics, this);
    mg_set_request_handler(context_, "/healthz$", &Healthz, this);
    mg_set_request_handler(context_, "/readyz$", &Readyz, this);
    mg_set_request_handler(context_, "/**", &NotFound, this);
    return absl::OkStatus();
  }

  int port() const {
    mg_server_port port = {};
    return mg_get_server_ports(context_, 1, &port) == 1 ? port.port : 0;
  }

 private:
  static int Metrics(mg_connection* connection, void* self) {
    const MetricsServerOptions& options = static_cast<Http*>(self)->options_;
    if (options.before_scrape) options.before_scrape();
    return Respond(
        connection, 200, "OK",
        prometheus::TextSerializer().Serialize(options.registry->Collect()));
  }
  static int Healthz(mg_connection* connection, void* self) {
    const MetricsServerOptions& options = static_cast<Http*>(self)->options_;
    return !options.live || options.live()
               ? Respond(connection, 200, "OK", "ok\n")
               : Respond(connection, 503, "Service Unavailable", "stuck\n");
  }
  static int Readyz(mg_connection* connection, void* self) {
    const MetricsServerOptions& options = static_cast<Http*>(self)->options_;
    return options.ready()
               ? Respond(connection, 200, "OK", "ok\n")
               : Respond(connection, 503, "Service Unavailable", "not ready\n");
  }
  static int NotFound(mg_connection* connection, void*) {
    return Respond(connection, 404, "Not Found", "not found\n");
  }

  const MetricsServerOptions options_;
  mg_context* context_ = nullptr;
};

MetricsServer::MetricsServer(std::unique_ptr<Http> http)
    : http_(std::move(http)) {}
MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    MetricsServerOptions options) {
  auto http = std::make_unique<Http>(std::move(options));
  if (absl::Status status = http->Listen(); !status.ok()) return status;
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(http)));
}

int MetricsServer::port() const { return http_->port(); }

}  // namespace baton
