// RETURN_IF_ERROR and ASSIGN_OR_RETURN for absl::Status and absl::StatusOr.
#ifndef BATON_BASE_STATUS_MACROS_H_
#define BATON_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expr` (an absl::Status) is an
// error.
#define RETURN_IF_ERROR(expr)                                     \
  do {                                                            \
    if (absl::Status baton_status = (expr); !baton_status.ok()) { \
      return baton_status;                                        \
    }                                                             \
  } while (false)

#define BATON_CONCAT_INNER(a, b) a##b
#define BATON_CONCAT(a, b) BATON_CONCAT_INNER(a, b)

// ASSIGN_OR_RETURN(auto value, Make()): declares or assigns `lhs` from an
// absl::StatusOr, or returns its error.
#define ASSIGN_OR_RETURN(lhs, expr) \
  BATON_ASSIGN_OR_RETURN(BATON_CONCAT(baton_status_or_, __LINE__), lhs, expr)
#define BATON_ASSIGN_OR_RETURN(tmp, lhs, expr)   \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = *std::move(tmp)

#endif  // BATON_BASE_STATUS_MACROS_H_
