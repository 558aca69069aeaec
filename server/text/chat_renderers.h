// The chat templates that are known, each as a function.
#ifndef BATON_SERVER_TEXT_CHAT_RENDERERS_H_
#define BATON_SERVER_TEXT_CHAT_RENDERERS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/chat_messages.h"

namespace baton {

// What a template sees. Roles are valid.
struct ChatInput {
  std::span<const ChatMessage> messages;
  const ChatOptions& options;
  // options.tools[i].parameters, printed as Jinja's tojson does.
  std::vector<std::string> tool_parameters;
  // Of tokenizer_config.json.
  std::string_view bos_token;
  std::string_view eos_token;
};

struct ChatRenderer {
  // ContentHash of the template's program, as tokenizer_config.json holds it.
  std::string_view template_hash;
  // Gives what the program would print, special tokens told apart from text.
  void (*render)(const ChatInput& input, ChatRuns* runs);
  // All that `render` uses, besides BOS and EOS.
  std::span<const std::string_view> special_tokens;
};

// nullptr where the template is not known.
const ChatRenderer* FindChatRenderer(std::string_view template_hash);

}  // namespace baton

#endif  // BATON_SERVER_TEXT_CHAT_RENDERERS_H_
