// One Split step of a pre-tokenizer: a regular expression that cuts text.
#ifndef BATON_SERVER_TEXT_SPLITTER_H_
#define BATON_SERVER_TEXT_SPLITTER_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// Cuts text at the matches of a pattern; matches and what lies between them are
// pieces alike (behaviour "Isolated"). Thread-safe: immutable.
//
// Patterns are written for Oniguruma (Ruby syntax, Unicode). PCRE2 reads the
// same where this lets it: \s is rewritten, since PCRE2's takes in U+180E; what
// the two understand differently is refused.
class Splitter final {
 public:
  // INVALID_ARGUMENT says what is wrong with the pattern, and where.
  static absl::StatusOr<Splitter> Create(std::string_view pattern);

  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;
  ~Splitter();

  // Appends the pieces of each text, none empty; together they are the texts,
  // which do not see each other. INVALID_ARGUMENT when the pattern takes too
  // many steps for one. REQUIRES: the texts are valid UTF-8.
  absl::Status Split(std::span<const std::string_view> texts,
                     std::vector<std::string_view>* pieces) const;

 private:
  struct Compiled;

  explicit Splitter(std::unique_ptr<const Compiled> compiled);

  std::unique_ptr<const Compiled> compiled_;
};

}  // namespace baton

#endif  // BATON_SERVER_TEXT_SPLITTER_H_
