#include "server/cli/rpc_error.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/field_error.h"
#include "server/cli/request_flags.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

// The flag of the field that the error names, or the request.
std::string WhatToCorrect(const absl::Status& status) {
  const auto field = ErrorField(status);
  return field ? FlagOfField(*field).value_or("the request") : "the request";
}

// Without a reason it is gRPC's word, who found nobody; else the router's own.
std::string AdviceWhenUnavailable(const std::optional<std::string>& reason,
                                  const std::string& endpoint) {
  if (!reason.has_value()) {
    return "is a server listening at " + endpoint +
           "? `baton local up` starts a router and its workers";
  }
  if (*reason == "NO_WORKER") {
    return "the router at " + endpoint +
           " answers, and none of its workers can serve: its log says why of "
           "each, `baton top` shows those that are up";
  }
  if (*reason == "DRAINING") {
    return "the server at " + endpoint +
           " is going down: ask another, or again later";
  }
  return "try again later; the log of the router at " + endpoint +
         " names the workers that failed";
}

std::string Advice(const grpc::Status& status, const std::string& endpoint) {
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
      return "correct " + WhatToCorrect(FromGrpcStatus(status)) +
             " and try again";
    case grpc::StatusCode::FAILED_PRECONDITION:
      return "this model or server cannot do that; ask for something else";
    case grpc::StatusCode::ALREADY_EXISTS:
      return "choose another client_request_id, or wait for the first one";
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return "try again later, or with fewer requests at once";
    case grpc::StatusCode::UNAVAILABLE:
      return AdviceWhenUnavailable(ErrorReason(FromGrpcStatus(status)),
                                   endpoint);
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "raise --timeout, or ask for fewer tokens";
    case grpc::StatusCode::UNIMPLEMENTED:
      return endpoint + " is no baton-router; give the router's endpoint";
    default:
      return "see the log of the server at " + endpoint;
  }
}

// What the details add: a reason for programs, and when to come back.
std::string Details(const absl::Status& status) {
  std::string text;
  if (const auto reason = ErrorReason(status)) text += " (" + *reason + ")";
  if (const auto delay = RetryDelay(status)) {
    text += " (retry after " + absl::FormatDuration(*delay) + ")";
  }
  return text;
}

}  // namespace

std::string ExplainRpcError(const grpc::Status& status,
                            const std::string& endpoint) {
  const absl::Status known = FromGrpcStatus(status);
  return absl::StatusCodeToString(known.code()) + ": " +
         status.error_message() + Details(known) + "; " +
         Advice(status, endpoint);
}

}  // namespace baton
