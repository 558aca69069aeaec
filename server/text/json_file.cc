#include "server/text/json_file.h"

#include <utility>

#include "base/json_text.h"
#include "base/status_macros.h"

namespace baton {
absl::Status JsonFieldError(std::string_view file, std::string_view field,
                            std::string_view problem) {
  std::string message(file);
  message.append(": ").append(field).append(": ").append(problem);
  return absl::InvalidArgumentError(message);
}

JsonObject::JsonObject(std::string file, std::string path, const Json& json)
    : file_(std::move(file)), path_(std::move(path)), json_(&json) {}

absl::StatusOr<JsonObject> JsonObject::Create(std::string file,
                                              std::string path,
                                              const Json& json) {
  if (!json.is_object()) {
    return JsonFieldError(file, path.empty() ? "top level" : path,
                          "is not an object");
  }
  return JsonObject(std::move(file), std::move(path), json);
}

absl::StatusOr<std::optional<bool>> JsonObject::Bool(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return Error(key, "is neither true nor false");
  return value->get<bool>();
}

absl::StatusOr<std::optional<std::string>> JsonObject::String(
    const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return Error(key, "is not a string");
  return value->get<std::string>();
}

absl::StatusOr<std::optional<uint32_t>> JsonObject::Unsigned(
    const char* key, uint32_t max) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_unsigned() || value->get<uint64_t>() > max) {
    return Error(key, "is not a whole number from 0 to " + std::to_string(max));
  }
  return value->get<uint32_t>();
}

absl::StatusOr<std::optional<double>> JsonObject::Number(
    const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return Error(key, "is not a number");
  return value->get<double>();
}

absl::StatusOr<std::string> JsonObject::RequiredString(const char* key) const {
  ASSIGN_OR_RETURN(std::optional<std::string> value, String(key));
  if (!value.has_value()) return Error(key, "is missing");
  return *std::move(value);
}

absl::StatusOr<uint32_t> JsonObject::RequiredUnsigned(const char* key,
                                                      uint32_t max) const {
  ASSIGN_OR_RETURN(const std::optional<uint32_t> value, Unsigned(key, max));
  if (!value.has_value()) return Error(key, "is missing");
  return *value;
}

absl::StatusOr<JsonObject> JsonObject::RequiredObject(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return Error(key, "is missing");
  return Create(file_, Name(key), *value);
}

absl::StatusOr<const Json*> JsonObject::RequiredArray(const char* key) const {
  const Json* value = Find(key);
  if (value == nullptr) return Error(key, "is missing");
  if (!value->is_array()) return Error(key, "is not an array");
  return value;
}

std::string JsonObject::Name(const char* key) const {
  return path_.empty() ? key : path_ + "." + key;
}

const Json* JsonObject::Find(const char* key) const {
  const auto found = json_->find(key);
  if (found == json_->end() || found->is_null()) return nullptr;
  return &*found;
}

absl::Status JsonObject::Error(const char* key,
                               std::string_view problem) const {
  return JsonFieldError(file_, Name(key), problem);
}

JsonFile::JsonFile(std::string path, Json json)
    : path_(std::move(path)), json_(std::move(json)) {}

absl::StatusOr<JsonFile> JsonFile::Read(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadTextFile(path, kMaxTextFileBytes));
  ASSIGN_OR_RETURN(Json json, ParseJson(text, path));
  RETURN_IF_ERROR(JsonObject::Create(path, "", json).status());
  return JsonFile(path, std::move(json));
}

// Read has made sure that it is an object.
JsonObject JsonFile::root() const {
  return *JsonObject::Create(path_, "", json_);
}

}  // namespace baton
