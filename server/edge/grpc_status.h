// absl::Status at the gRPC edge, and back.
//
// Details travel in grpc-status-details-bin as google.rpc.Status
// (error_details.proto): the field of a FieldError and the reason become
// google.rpc.ErrorInfo {reason, domain "baton", metadata["field"]}, the retry
// delay becomes google.rpc.RetryInfo.
#ifndef BATON_SERVER_EDGE_GRPC_STATUS_H_
#define BATON_SERVER_EDGE_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace baton {

// "Come back after `delay`": for RESOURCE_EXHAUSTED and UNAVAILABLE.
absl::Status WithRetryDelay(absl::Status status, absl::Duration delay);
std::optional<absl::Duration> RetryDelay(const absl::Status& status);

// Why, for programs: UPPER_SNAKE_CASE. A FieldError's is "INVALID_FIELD" unless
// set.
absl::Status WithReason(absl::Status status, std::string_view reason);
std::optional<std::string> ErrorReason(const absl::Status& status);

// Text that may hold paths or addresses stays here: INTERNAL, UNKNOWN and
// DATA_LOSS leave with a fixed text, and so does an UNAVAILABLE that has
// neither reason nor retry delay (such as gRPC's own, which names addresses).
// Whoever calls logs the original if it matters.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Code, text and details of a peer's answer. Not to be shown to a client as it
// is; ToGrpcStatus takes care of that.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace baton

#endif  // BATON_SERVER_EDGE_GRPC_STATUS_H_
