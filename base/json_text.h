// Text files, and JSON from files and clients, read with bounds.
#ifndef BATON_BASE_JSON_TEXT_H_
#define BATON_BASE_JSON_TEXT_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

inline constexpr int kMaxJsonDepth = 64;

// Parses one JSON value; never throws. INVALID_ARGUMENT naming `name` for text
// that is not JSON, nests deeper than kMaxJsonDepth, or repeats a key in an
// object.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text,
                                         std::string_view name);

// The same, keeping the order of keys, and of a repeated key one. Quadratic in
// the keys of an object: for short texts only.
absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(std::string_view text,
                                                        std::string_view name);

// The whole content of a regular file. NOT_FOUND where there is none,
// FAILED_PRECONDITION for what cannot be read or is something else,
// INVALID_ARGUMENT for more than `max_bytes`; all name it.
absl::StatusOr<std::string> ReadTextFile(const std::string& path,
                                         size_t max_bytes);

}  // namespace baton

#endif  // BATON_BASE_JSON_TEXT_H_
