#include "engine/model/json_text.h"

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

namespace baton {
namespace {

constexpr int kMaxNesting = 32;

// What can be seen without parsing: characters outside strings.
struct TextOutline {
  int depth = 0;         // Of the deepest bracket, or just beyond the limit.
  size_t num_pairs = 0;  // Colons: one for each key of an object.
};

TextOutline Outline(std::string_view text) {
  TextOutline outline;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size() && outline.depth <= kMaxNesting; ++i) {
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

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text,
                                         const std::string& source) {
  const TextOutline outline = Outline(text);
  if (outline.depth > kMaxNesting) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, ": JSON nests deeper than ", kMaxNesting, " levels"));
  }
  nlohmann::json value =
      nlohmann::json::parse(text.begin(), text.end(), /*cb=*/nullptr,
                            /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": not JSON"));
  }
  if (CountPairs(value) != outline.num_pairs) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, ": key '", FindRepeatedKey(text), "' is repeated"));
  }
  return value;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path,
                                         size_t max_bytes) {
  // Without O_NONBLOCK, opening a named pipe would wait for a writer.
  const FileDescriptor file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status = {};
  if (file.value < 0 || fstat(file.value, &status) != 0) {
    return absl::NotFoundError(absl::StrCat(path, ": ", strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a file"));
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
    if (n < 0) {
      return absl::UnavailableError(absl::StrCat(path, ": ", strerror(errno)));
    }
    if (n == 0) break;  // Shrunk meanwhile.
    size += n;
  }
  text.resize(size);
  return text;
}

}  // namespace baton
