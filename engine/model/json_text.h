// JSON of a model folder, read with bounds.
#ifndef BATON_ENGINE_MODEL_JSON_TEXT_H_
#define BATON_ENGINE_MODEL_JSON_TEXT_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

// Parses one JSON value; never throws. INVALID_ARGUMENT naming `source` for
// text that is not JSON, nests deeper than 32, or repeats a key in an object.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text,
                                         const std::string& source);

// The whole content of a regular file. NOT_FOUND, or INVALID_ARGUMENT for
// something else than a file or for more than `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path,
                                         size_t max_bytes);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_JSON_TEXT_H_
