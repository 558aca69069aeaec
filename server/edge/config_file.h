// The text of a configuration file: a line a flag, read by YAML too.
//
//   # A comment, also behind a value.
//   role: decode
//   prefill: 10.0.0.1:50061,10.0.0.2:50061   # lists and durations as in flags
//   leader: "a # that is no comment"
//
//   file  := { [line] newline }
//   line  := [name ":" [blanks value]] [blanks "#" anything]
//   value := plain | '"' { any but " and \ | \" | \\ | \n | \t } '"'
//
// A plain value begins with none of YAML's signs "'[]{},>|*&!%@`#, and ends
// before " #". There is no nesting, so no line begins with a blank.
#ifndef BATON_SERVER_EDGE_CONFIG_FILE_H_
#define BATON_SERVER_EDGE_CONFIG_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

struct ConfigLine {
  std::string name;        // With underscores for dashes.
  std::string value;       // As a flag has it.
  std::string place = {};  // "path:line".
};

// `path` is for errors alone: "path:line: name: problem". No name comes twice.
absl::StatusOr<std::vector<ConfigLine>> ParseConfig(const std::string& text,
                                                    const std::string& path);
// NOT_FOUND: it cannot be read.
absl::StatusOr<std::vector<ConfigLine>> ReadConfigFile(const std::string& path);

// `value` as a line has it: quoted where it must be.
std::string FormatConfigValue(const std::string& value);

}  // namespace baton

#endif  // BATON_SERVER_EDGE_CONFIG_FILE_H_
