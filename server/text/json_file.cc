#include "server/text/json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "base/status_macros.h"

namespace baton {
namespace {

// The depth of nesting in `text`, whether or not it is good JSON.
int Depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

absl::Status TextError(std::string_view name, std::string_view problem) {
  std::string message(name);
  message.append(": ").append(problem);
  return absl::InvalidArgumentError(message);
}

template <typename J>
absl::StatusOr<J> Parse(std::string_view name, std::string_view text) {
  if (Depth(text) > kMaxJsonDepth) {
    return TextError(name, "nested deeper than " +
                               std::to_string(kMaxJsonDepth) + " levels");
  }
  try {
    return J::parse(text.begin(), text.end());
  } catch (const typename J::exception& error) {
    return TextError(name, error.what());
  }
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  // Without O_NONBLOCK a FIFO would wait here for its writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const int error = errno;
    const std::string message = path + ": " + std::strerror(error);
    if (error == ENOENT) return absl::NotFoundError(message);
    return absl::FailedPreconditionError(message);
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return absl::FailedPreconditionError(path + ": not a regular file");
  }
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fdopen(fd, "rb"),
                                                   std::fclose);
  std::string contents;
  char buffer[1 << 16];
  size_t num_read = 0;
  while ((num_read = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0) {
    contents.append(buffer, num_read);
    if (contents.size() > kMaxTextFileBytes) {
      return TextError(
          path, "larger than " + std::to_string(kMaxTextFileBytes) + " bytes");
    }
  }
  if (std::ferror(file.get()) != 0) {
    return absl::FailedPreconditionError(path + ": cannot be read");
  }
  return contents;
}

absl::StatusOr<Json> ParseJson(std::string_view name, std::string_view text) {
  return Parse<Json>(name, text);
}

absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(std::string_view name,
                                                        std::string_view text) {
  return Parse<nlohmann::ordered_json>(name, text);
}

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
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  ASSIGN_OR_RETURN(Json json, ParseJson(path, text));
  RETURN_IF_ERROR(JsonObject::Create(path, "", json).status());
  return JsonFile(path, std::move(json));
}

// Read has made sure that it is an object.
JsonObject JsonFile::root() const {
  return *JsonObject::Create(path_, "", json_);
}

}  // namespace baton
