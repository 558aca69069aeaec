// The JSON files of a model folder, with errors that name file and field.
#ifndef BATON_SERVER_TEXT_JSON_FILE_H_
#define BATON_SERVER_TEXT_JSON_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace baton {

using Json = nlohmann::json;

inline constexpr size_t kMaxTextFileBytes = 64 << 20;

// INVALID_ARGUMENT "<file>: <field>: <problem>".
absl::Status JsonFieldError(std::string_view file, std::string_view field,
                            std::string_view problem);

// One object of a file and its fields. A field that is absent or null reads as
// nothing; one of the wrong type or out of range is an error with file and
// field. Borrows the JSON. Thread-compatible.
class JsonObject final {
 public:
  // `path` is the object's own field in the file, empty for the top level. An
  // error where `json` is no object.
  static absl::StatusOr<JsonObject> Create(std::string file, std::string path,
                                           const Json& json);

  absl::StatusOr<std::optional<bool>> Bool(const char* key) const;
  absl::StatusOr<std::optional<std::string>> String(const char* key) const;
  absl::StatusOr<std::optional<uint32_t>> Unsigned(const char* key,
                                                   uint32_t max) const;
  absl::StatusOr<std::optional<double>> Number(const char* key) const;

  // The same for fields that must be there.
  absl::StatusOr<std::string> RequiredString(const char* key) const;
  absl::StatusOr<uint32_t> RequiredUnsigned(const char* key,
                                            uint32_t max) const;
  absl::StatusOr<JsonObject> RequiredObject(const char* key) const;
  absl::StatusOr<const Json*> RequiredArray(const char* key) const;

  const std::string& file() const { return file_; }
  // The field's full name in the file.
  std::string Name(const char* key) const;
  // nullptr where absent or null.
  const Json* Find(const char* key) const;
  absl::Status Error(const char* key, std::string_view problem) const;

 private:
  JsonObject(std::string file, std::string path, const Json& json);

  std::string file_;
  std::string path_;
  const Json* json_;
};

// A parsed file whose top level is an object.
class JsonFile final {
 public:
  static absl::StatusOr<JsonFile> Read(const std::string& path);

  JsonObject root() const;

 private:
  JsonFile(std::string path, Json json);

  std::string path_;
  Json json_;
};

}  // namespace baton

#endif  // BATON_SERVER_TEXT_JSON_FILE_H_
