#include "server/text/splitter.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "server/text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include "pcre2.h"

namespace baton {
namespace {

// Steps of one match, and memory for its backtracking where compiled code has
// not stack enough. A pattern that needs more is not fit for other people's
// text.
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 64 << 10;

absl::Status PatternError(size_t offset, std::string_view problem) {
  std::string message("pattern: at byte ");
  message.append(std::to_string(offset)).append(": ").append(problem);
  return absl::InvalidArgumentError(message);
}

std::string Pcre2Message(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

bool Contains(std::string_view characters, char c) {
  return std::count(characters.begin(), characters.end(), c) > 0;
}

// Oniguruma's pattern as PCRE2 has to read it to mean the same.
class PatternReader final {
 public:
  explicit PatternReader(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Translate() {
    while (at_ < pattern_.size()) {
      RETURN_IF_ERROR(pattern_[at_] == '\\' ? TranslateEscape() : CopyByte());
    }
    return std::move(out_);
  }

 private:
  absl::Status Refuse() const {
    return PatternError(at_, "means something else to PCRE2, or nothing");
  }

  absl::Status CopyByte() {
    const char c = pattern_[at_];
    const std::string_view rest = pattern_.substr(at_);
    // Onig nests and intersects classes.
    if (in_class_ && (c == '[' || rest.starts_with("&&"))) return Refuse();
    // Groups and lookaround; of the options, only i is the same in both.
    if (!in_class_ && rest.starts_with("(?") &&
        (rest.size() < 3 || !Contains(":=!<>i", rest[2]))) {
      return Refuse();
    }
    in_class_ = in_class_ ? c != ']' : c == '[';
    out_.push_back(c);
    ++at_;
    return absl::OkStatus();
  }

  absl::Status TranslateEscape() {
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    size_t num_bytes = 2;
    if (c == 's' || c == 'S') {
      out_.append(c == 's' ? "\\p{White_Space}" : "\\P{White_Space}");
    } else if (c == 'p' || c == 'P') {
      // General categories. Scripts would be script extensions in PCRE2.
      const size_t end = pattern_.find('}', at_);
      if (pattern_.substr(at_ + 2, 1) != "{" || end > at_ + 5) return Refuse();
      num_bytes = end + 1 - at_;
      out_.append(pattern_.substr(at_, num_bytes));
    } else {
      const bool is_letter_or_digit = (c >= '0' && c <= '9') ||
                                      (c >= 'A' && c <= 'Z') ||
                                      (c >= 'a' && c <= 'z') || c == '\0';
      if (is_letter_or_digit && !Contains("dDnrtfxAz", c)) return Refuse();
      out_.append(pattern_.substr(at_, num_bytes));
    }
    at_ += num_bytes;
    return absl::OkStatus();
  }

  const std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, FreeMatchData>;

}  // namespace

struct Splitter::Compiled {
  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }

  // Where the next match at or after `search` is, into `match`; whether there
  // is one.
  absl::StatusOr<bool> Find(std::string_view text, size_t search,
                            pcre2_match_data* match) const;
  absl::Status Split(std::string_view text, pcre2_match_data* match,
                     std::vector<std::string_view>* pieces) const;

  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
};

absl::StatusOr<bool> Splitter::Compiled::Find(std::string_view text,
                                              size_t search,
                                              pcre2_match_data* match) const {
  const auto run = [&](uint32_t options) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                       text.size(), search, PCRE2_NO_UTF_CHECK | options, match,
                       context);
  };
  int found = run(0);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found >= 0) return true;
  return absl::InvalidArgumentError(
      "the model's pre-tokenizer cannot split this text: " +
      Pcre2Message(found));
}

absl::Status Splitter::Compiled::Split(
    std::string_view text, pcre2_match_data* match,
    std::vector<std::string_view>* pieces) const {
  const size_t* span = pcre2_get_ovector_pointer(match);
  size_t cut = 0;     // All before it is in `pieces`.
  size_t search = 0;  // No match begins before it.
  const auto cut_at = [&](size_t end) {
    if (end > cut) pieces->push_back(text.substr(cut, end - cut));
    cut = end;
  };
  while (search < text.size()) {
    ASSIGN_OR_RETURN(const bool found, Find(text, search, match));
    if (!found) break;
    cut_at(span[0]);
    cut_at(span[1]);
    search = span[1];
    if (span[0] == span[1] && search < text.size()) {
      search += NextUtf8(text.substr(search)).num_bytes;
    }
  }
  cut_at(text.size());
  return absl::OkStatus();
}

Splitter::Splitter(std::unique_ptr<const Compiled> compiled)
    : compiled_(std::move(compiled)) {}
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;
Splitter::~Splitter() = default;

absl::StatusOr<Splitter> Splitter::Create(std::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string translated,
                   PatternReader(pattern).Translate());
  auto compiled = std::make_unique<Compiled>();
  int error = 0;
  size_t offset = 0;
  // In Ruby ^ and $ stand at lines, which is PCRE2's MULTILINE.
  compiled->code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr);
  if (compiled->code == nullptr) {
    return PatternError(offset, Pcre2Message(error));
  }
  // Without JIT (not on every platform) the interpreter gives the same matches.
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  compiled->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(compiled->context, kMatchLimit);
  pcre2_set_heap_limit(compiled->context, kHeapLimitKib);
  return Splitter(std::move(compiled));
}

absl::Status Splitter::Split(std::span<const std::string_view> texts,
                             std::vector<std::string_view>* pieces) const {
  const MatchData match(pcre2_match_data_create(1, nullptr));
  for (const std::string_view text : texts) {
    RETURN_IF_ERROR(compiled_->Split(text, match.get(), pieces));
  }
  return absl::OkStatus();
}

}  // namespace baton
