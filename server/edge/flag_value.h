// The values that a flag can have, and what they look like as text.
#ifndef BATON_SERVER_EDGE_FLAG_VALUE_H_
#define BATON_SERVER_EDGE_FLAG_VALUE_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace baton {

// A number of bytes: "1048576", "1MiB", "2GiB".
struct ByteSize {
  uint64_t bytes = 0;
};

// Where a flag's value goes. Durations are "30s" or "1m30s", lists have commas,
// and "\\," where an item has one; an optional that stays empty has no default.
using FlagTarget =
    std::variant<bool*, int32_t*, uint32_t*, uint64_t*, double*, std::string*,
                 absl::Duration*, ByteSize*, std::vector<std::string>*,
                 std::optional<bool>*, std::optional<uint32_t>*,
                 std::optional<uint64_t>*, std::optional<float>*,
                 std::optional<std::string>*, std::optional<ByteSize>*,
                 std::optional<absl::Duration>*>;

struct FlagSpec {
  std::string name;  // snake_case
  std::string help;  // One or more sentences, with the unit.
  // Inclusive; of numbers, of a duration's seconds, of bytes.
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool required = false;
  // Of a list: items are taken as they are, and none may be empty; else spaces
  // around them and empty ones are dropped.
  bool exact_items = false;
};

enum class FlagArity { kOne, kSwitch, kList, kPositional };

FlagArity ArityOf(const FlagTarget& target);
// "N", "DURATION", ...; empty for a switch.
std::string TypeName(const FlagTarget& target);

// INVALID_ARGUMENT says what the value should be; it does not name the flag.
absl::Status ParseFlagValue(const std::string& text, const FlagSpec& spec,
                            const FlagTarget& target);
// Whether `text` is host:port or [v6]:port with a port of 0 .. 65535; the error
// is as above.
absl::Status CheckHostPort(const std::string& text);
// Empty for an optional without a value.
std::string FormatFlagValue(const FlagTarget& target);

}  // namespace baton

#endif  // BATON_SERVER_EDGE_FLAG_VALUE_H_
