// `baton generate`: one prompt, its text streamed as it comes.
#ifndef BATON_SERVER_CLI_GENERATE_H_
#define BATON_SERVER_CLI_GENERATE_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/cli/console.h"
#include "server/cli/request_flags.h"
#include "server/edge/config.h"

namespace baton {

struct GenerateOptions {
  RequestOptions request;
  std::optional<std::string> prompt;
  std::optional<std::string> token_ids;
  bool parse_special = false;
  bool json = false;
};

void AddGenerateFlags(Flags& flags, GenerateOptions* options);
absl::Status ValidateGenerate(const GenerateOptions& options);
// The exit code.
int RunGenerate(const GenerateOptions& options, const Console& console);

}  // namespace baton

#endif  // BATON_SERVER_CLI_GENERATE_H_
