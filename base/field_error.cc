#include "base/field_error.h"

#include "absl/strings/cord.h"

namespace baton {
namespace {

constexpr char kFieldPayload[] = "baton/field";

}  // namespace

absl::Status FieldError(std::string_view field, std::string_view problem) {
  std::string message(field);
  message.append(": ").append(problem);
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kFieldPayload, absl::Cord(std::string(field)));
  return status;
}

std::optional<std::string> ErrorField(const absl::Status& status) {
  const auto payload = status.GetPayload(kFieldPayload);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

}  // namespace baton
