#include "server/edge/grpc_status.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "base/field_error.h"
#include "proto/baton/v1/error_details.pb.h"

namespace baton {
namespace {

constexpr char kReasonPayload[] = "baton/reason";
constexpr char kRetryDelayPayload[] = "baton/retry_delay_nanos";
constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr char kDomain[] = "baton";
constexpr char kFieldKey[] = "field";
constexpr char kInvalidFieldReason[] = "INVALID_FIELD";

std::optional<std::string> Payload(const absl::Status& status,
                                   const char* url) {
  const auto payload = status.GetPayload(url);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

// `status` as FieldError made it; unchanged if it could not have.
absl::Status AsFieldError(const absl::Status& status,
                          const std::string& field) {
  const std::string message(status.message());
  const std::string prefix = field + ": ";
  if (!absl::IsInvalidArgument(status) ||
      message.compare(0, prefix.size(), prefix) != 0) {
    return status;
  }
  return FieldError(field, message.substr(prefix.size()));
}

std::string PublicMessage(const absl::Status& status, bool has_details) {
  switch (status.code()) {
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDataLoss:
      return "internal error";
    case absl::StatusCode::kUnavailable:
      if (!has_details) return "unavailable";
      break;
    default:
      break;
  }
  return std::string(status.message());
}

template <typename Detail>
void AddDetail(const Detail& detail, const char* url, v1::RpcStatus* out) {
  google::protobuf::Any* any = out->add_details();
  any->set_type_url(url);
  detail.SerializeToString(any->mutable_value());
}

// Again a field error, a reason and a delay; what cannot be read is left out.
absl::Status WithDetails(absl::Status status, const v1::RpcStatus& rpc) {
  for (const google::protobuf::Any& any : rpc.details()) {
    if (v1::ErrorInfo info;
        any.type_url() == kErrorInfoUrl && info.ParseFromString(any.value())) {
      const auto field = info.metadata().find(kFieldKey);
      if (field != info.metadata().end()) {
        status = AsFieldError(status, field->second);
      }
      if (info.reason() != kInvalidFieldReason) {
        status = WithReason(std::move(status), info.reason());
      }
    }
    if (v1::RetryInfo info;
        any.type_url() == kRetryInfoUrl && info.ParseFromString(any.value())) {
      status = WithRetryDelay(
          std::move(status), absl::Seconds(info.retry_delay().seconds()) +
                                 absl::Nanoseconds(info.retry_delay().nanos()));
    }
  }
  return status;
}

}  // namespace

absl::Status WithRetryDelay(absl::Status status, absl::Duration delay) {
  status.SetPayload(
      kRetryDelayPayload,
      absl::Cord(std::to_string(absl::ToInt64Nanoseconds(delay))));
  return status;
}

std::optional<absl::Duration> RetryDelay(const absl::Status& status) {
  const std::optional<std::string> text = Payload(status, kRetryDelayPayload);
  int64_t nanos = 0;
  if (!text.has_value() || !absl::SimpleAtoi(*text, &nanos)) {
    return std::nullopt;
  }
  return absl::Nanoseconds(nanos);
}

absl::Status WithReason(absl::Status status, std::string_view reason) {
  status.SetPayload(kReasonPayload, absl::Cord(std::string(reason)));
  return status;
}

std::optional<std::string> ErrorReason(const absl::Status& status) {
  if (auto reason = Payload(status, kReasonPayload)) return reason;
  if (ErrorField(status).has_value()) return kInvalidFieldReason;
  return std::nullopt;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  v1::RpcStatus rpc;
  if (const auto reason = ErrorReason(status)) {
    v1::ErrorInfo info;
    info.set_reason(*reason);
    info.set_domain(kDomain);
    if (const auto field = ErrorField(status)) {
      (*info.mutable_metadata())[kFieldKey] = *field;
    }
    AddDetail(info, kErrorInfoUrl, &rpc);
  }
  if (const auto delay = RetryDelay(status)) {
    v1::RetryInfo info;
    absl::Duration nanos;
    info.mutable_retry_delay()->set_seconds(
        absl::IDivDuration(*delay, absl::Seconds(1), &nanos));
    info.mutable_retry_delay()->set_nanos(
        static_cast<int32_t>(absl::ToInt64Nanoseconds(nanos)));
    AddDetail(info, kRetryInfoUrl, &rpc);
  }
  const bool has_details = rpc.details_size() > 0;
  rpc.set_code(static_cast<int>(status.code()));
  rpc.set_message(PublicMessage(status, has_details));
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      rpc.message(),
                      has_details ? rpc.SerializeAsString() : std::string());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status out(static_cast<absl::StatusCode>(status.error_code()),
                   status.error_message());
  v1::RpcStatus rpc;
  if (!rpc.ParseFromString(status.error_details())) return out;
  return WithDetails(std::move(out), rpc);
}

}  // namespace baton
