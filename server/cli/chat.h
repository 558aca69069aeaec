// `baton chat`: a conversation, or one message of it.
#ifndef BATON_SERVER_CLI_CHAT_H_
#define BATON_SERVER_CLI_CHAT_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/cli/console.h"
#include "server/cli/request_flags.h"
#include "server/edge/config.h"

namespace baton {

struct ChatOptions {
  RequestOptions request;
  std::optional<std::string> message;
  std::optional<std::string> system;
  bool thinking = false;
};

void AddChatFlags(Flags& flags, ChatOptions* options);
absl::Status ValidateChat(const ChatOptions& options);
// The exit code. Without a message: reads one a line until the input ends, and
// each turn sees those before it.
int RunChat(const ChatOptions& options, const Console& console);

}  // namespace baton

#endif  // BATON_SERVER_CLI_CHAT_H_
