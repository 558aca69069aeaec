// Errors that name the field at fault, from any layer to the edge.
#ifndef BATON_BASE_FIELD_ERROR_H_
#define BATON_BASE_FIELD_ERROR_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

// INVALID_ARGUMENT "<field>: <problem>", with the field as a payload, which the
// gRPC edge turns into ErrorInfo. `field` is the path in the public request.
absl::Status FieldError(std::string_view field, std::string_view problem);

// The field of a status made by FieldError.
std::optional<std::string> ErrorField(const absl::Status& status);

}  // namespace baton

#endif  // BATON_BASE_FIELD_ERROR_H_
