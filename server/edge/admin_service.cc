#include "server/edge/admin_service.h"

#include <utility>

#include "absl/status/status.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "server/edge/admin_access.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

constexpr absl::Duration kMaxGrace = absl::Hours(1);
constexpr int32_t kNanosecondsASecond = 1'000'000'000;

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) +
         absl::Nanoseconds(duration.nanos());
}

}  // namespace

AdminService::AdminService(AdminOptions options)
    : options_(std::move(options)), process_(RandomBits()) {}

grpc::ServerUnaryReactor* AdminService::Drain(
    grpc::CallbackServerContext* context, const v1::DrainRequest* request,
    v1::DrainResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::Status allowed = CheckCaller(*context);
  if (allowed.ok()) allowed = CheckDrain(*request);
  if (!allowed.ok()) {
    LOG(WARNING) << "drain refused peer " << options_.peer_of(*context)
                 << " status " << allowed.ToString();
    reactor->Finish(ToGrpcStatus(allowed));
    return reactor;
  }
  options_.drain(request->has_grace()
                     ? std::optional(ToDuration(request->grace()))
                     : std::nullopt,
                 [this, reactor, response](uint64_t running_requests) {
                   response->set_running_requests(running_requests);
                   response->set_process(process_);
                   reactor->Finish(grpc::Status::OK);
                 });
  return reactor;
}

absl::Status AdminService::CheckCaller(
    const grpc::CallbackServerContext& context) const {
  AdminCall call = {.peer = options_.peer_of(context),
                    .authorization = std::nullopt};
  const auto& metadata = context.client_metadata();
  if (const auto it = metadata.find("authorization"); it != metadata.end()) {
    call.authorization.emplace(it->second.data(), it->second.size());
  }
  return CheckAdminCall(call, options_.token_file);
}

absl::Status AdminService::CheckDrain(const v1::DrainRequest& request) const {
  if (request.has_process() && request.process() != process_) {
    return WithReason(
        absl::FailedPreconditionError("that process is gone; this is another"),
        "OTHER_PROCESS");
  }
  if (!request.has_grace()) return absl::OkStatus();
  const int32_t nanos = request.grace().nanos();
  const absl::Duration grace = ToDuration(request.grace());
  if (nanos < 0 || nanos >= kNanosecondsASecond ||
      grace < absl::ZeroDuration() || grace > kMaxGrace) {
    return FieldError("grace", "must be 0 .. 1 hour");
  }
  return absl::OkStatus();
}

}  // namespace baton
