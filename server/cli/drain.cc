#include "server/cli/drain.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "proto/baton/v1/admin.grpc.pb.h"
#include "server/cli/rpc_error.h"
#include "server/edge/admin_access.h"

namespace baton {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);

std::chrono::system_clock::time_point After(absl::Duration duration) {
  return std::chrono::system_clock::now() + absl::ToChronoNanoseconds(duration);
}

std::string Requests(uint64_t count) {
  return absl::StrCat(count, count == 1 ? " request" : " requests");
}

// Asks one process again and again. Saying the same grace later shortens
// nothing.
class Drainer {
 public:
  Drainer(const DrainOptions& options, std::string token)
      : token_(std::move(token)),
        channel_(grpc::CreateChannel(options.endpoint,
                                     grpc::InsecureChannelCredentials())),
        stub_(v1::AdminService::NewStub(channel_)) {
    if (!options.grace.has_value()) return;
    const absl::Duration grace = *options.grace;
    const int64_t seconds = absl::ToInt64Seconds(grace);
    request_.mutable_grace()->set_seconds(seconds);
    request_.mutable_grace()->set_nanos(static_cast<int32_t>(
        absl::ToInt64Nanoseconds(grace - absl::Seconds(seconds))));
  }

  // The requests that run. From the second time on, the same process is meant.
  grpc::Status Ask(uint64_t* running_requests) {
    grpc::ClientContext context;
    context.set_deadline(After(kCallTimeout));
    if (!token_.empty()) {
      context.AddMetadata("authorization", "Bearer " + token_);
    }
    v1::DrainResponse response;
    grpc::Status status = stub_->Drain(&context, request_, &response);
    if (!status.ok()) return status;
    request_.set_process(response.process());
    *running_requests = response.running_requests();
    return status;
  }

  // Until its connection is lost, or so long.
  void Wait(absl::Duration duration) {
    const auto deadline = After(duration);
    auto state = channel_->GetState(false);
    while (state == GRPC_CHANNEL_READY &&
           channel_->WaitForStateChange(state, deadline)) {
      state = channel_->GetState(false);
    }
  }

 private:
  const std::string token_;
  // gRPC hands channels out so.
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::AdminService::Stub> stub_;
  v1::DrainRequest request_;
};

// Whether such an answer says that the process which drained is no more.
bool IsGone(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::FAILED_PRECONDITION;
}

}  // namespace

void AddDrainFlags(Flags& flags, DrainOptions* options) {
  flags.AddPositional(&options->endpoint,
                      {.name = "address",
                       .help = "host:port of a router or worker.",
                       .required = true});
  flags.Add(&options->grace,
            {.name = "grace",
             .help = "How long running requests may go on; 0 cuts them. A "
                     "drain that runs already is only shortened. Absent: the "
                     "process' --drain_grace.",
             .min = 0,
             .max = 3600});
  flags.Add(&options->timeout, {.name = "timeout",
                                .help = "How long to wait for its end.",
                                .min = 0,
                                .max = 86400});
  flags.Add(&options->interval, {.name = "interval",
                                 .help = "Between two looks at what runs.",
                                 .min = 0.01,
                                 .max = 60});
  flags.Add(&options->admin_token_file,
            {.name = "admin_token_file",
             .help = "The file that the process has under this flag, for a "
                     "process on another host."});
}

absl::Status ValidateDrain(const DrainOptions& options) {
  if (const absl::Status status = CheckHostPort(options.endpoint);
      !status.ok()) {
    return FieldError("address", std::string(status.message()));
  }
  return absl::OkStatus();
}

int RunDrain(const DrainOptions& options, const Console& console) {
  std::string token;
  if (!options.admin_token_file.empty()) {
    absl::StatusOr<std::string> read = ReadAdminToken(options.admin_token_file);
    if (!read.ok()) {
      console.err << "baton drain: --admin_token_file: "
                  << read.status().message() << "\n";
      return kExitUsage;
    }
    token = *std::move(read);
  }
  Drainer drainer(options, std::move(token));
  const absl::Time start = absl::Now();
  uint64_t running = 0;
  grpc::Status status = drainer.Ask(&running);
  if (!status.ok()) {
    console.err << "baton drain: " << ExplainRpcError(status, options.endpoint)
                << "\n";
    return kExitFailed;
  }
  const absl::Time give_up = start + options.timeout;
  uint64_t shown = running + 1;
  while (true) {
    if (running != shown) {
      console.err << options.endpoint << " drains, " << Requests(running)
                  << " left\n";
      shown = running;
    }
    const absl::Duration left = give_up - absl::Now();
    if (left <= absl::ZeroDuration()) break;
    drainer.Wait(std::min(options.interval, left));
    status = drainer.Ask(&running);
    if (IsGone(status)) {
      console.out << options.endpoint << " is gone after "
                  << absl::FormatDuration(absl::Now() - start) << "\n";
      return kExitOk;
    }
  }
  console.err << "baton drain: " << options.endpoint << " still works for "
              << Requests(running) << " after "
              << absl::FormatDuration(options.timeout)
              << "; wait longer with --timeout, or cut them with --grace=0s\n";
  return kExitFailed;
}

}  // namespace baton
