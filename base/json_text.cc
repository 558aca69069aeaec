#include "base/json_text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace baton {
namespace {

// What can be seen without parsing: characters outside strings.
struct TextOutline {
  int depth = 0;         // Of the deepest bracket, or just beyond the limit.
  size_t num_pairs = 0;  // Colons: one for each key of an object.
};

TextOutline Outline(std::string_view text) {
  TextOutline outline;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size() && outline.depth <= kMaxJsonDepth; ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == ':') {
      ++outline.num_pairs;
    } else if (c == '{' || c == '[') {
      outline.depth = std::max(outline.depth, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return outline;
}

// The parser keeps one of several equal keys, so that fewer pairs than the text
// has tell of a repeated one.
size_t CountPairs(const nlohmann::json& value) {
  if (!value.is_structured()) return 0;
  size_t pairs = value.is_object() ? value.size() : 0;
  for (const nlohmann::json& child : value) pairs += CountPairs(child);
  return pairs;
}

// Sees every key as it is parsed and keeps the first that an object repeats.
class RepeatedKeyFinder {
 public:
  using Event = nlohmann::json::parse_event_t;

  void See(Event event, const nlohmann::json& parsed) {
    if (event == Event::object_start) {
      open_objects_.emplace_back();
    } else if (event == Event::object_end) {
      open_objects_.pop_back();
    } else if (event == Event::key && repeated_.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects_.back().insert(key).second) repeated_ = key;
    }
  }
  const std::string& repeated() const { return repeated_; }

 private:
  std::vector<std::set<std::string>> open_objects_;
  std::string repeated_;
};

// Parses again, slowly.
std::string FindRepeatedKey(std::string_view text) {
  RepeatedKeyFinder finder;
  [[maybe_unused]] const nlohmann::json value = nlohmann::json::parse(
      text.begin(), text.end(),
      [&finder](int, RepeatedKeyFinder::Event event, nlohmann::json& parsed) {
        finder.See(event, parsed);
        return true;
      },
      /*allow_exceptions=*/false);
  return finder.repeated();
}

template <typename J>
absl::StatusOr<J> Parse(std::string_view text, std::string_view name,
                        const TextOutline& outline) {
  if (outline.depth > kMaxJsonDepth) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(name), ": nests deeper than ", kMaxJsonDepth, " levels"));
  }
  try {
    return J::parse(text.begin(), text.end());
  } catch (const typename J::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ": ", error.what()));
  }
}

// Closes on every way out.
struct FileDescriptor {
  explicit FileDescriptor(int fd) : value(fd) {}
  ~FileDescriptor() {
    if (value >= 0) close(value);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  const int value;
};

absl::Status FileError(const std::string& path, int error) {
  const std::string message = absl::StrCat(path, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message)
                         : absl::FailedPreconditionError(message);
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text,
                                         std::string_view name) {
  const TextOutline outline = Outline(text);
  ASSIGN_OR_RETURN(nlohmann::json value,
                   Parse<nlohmann::json>(text, name, outline));
  if (CountPairs(value) != outline.num_pairs) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(name), ": key '", FindRepeatedKey(text), "' is repeated"));
  }
  return value;
}

absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(std::string_view text,
                                                        std::string_view name) {
  return Parse<nlohmann::ordered_json>(text, name, Outline(text));
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path,
                                         size_t max_bytes) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer.
  const FileDescriptor file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.value < 0) return FileError(path, errno);
  struct stat status = {};
  if (fstat(file.value, &status) != 0 || !S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": not a regular file"));
  }
  if (static_cast<uint64_t>(status.st_size) > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.st_size,
                                                   " bytes, at most ",
                                                   max_bytes, " are allowed"));
  }
  std::string text(status.st_size, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = read(file.value, text.data() + size, text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(path, errno);
    if (n == 0) break;  // Shrunk meanwhile.
    size += n;
  }
  text.resize(size);
  return text;
}

}  // namespace baton
