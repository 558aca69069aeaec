#include "server/router/prompt_encoder.h"

#include "base/status_macros.h"
#include "proto/baton/v1/inference.pb.h"

namespace baton {
namespace {

absl::StatusOr<std::vector<uint32_t>> EncodeText(const v1::TextPrompt& prompt,
                                                 const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(std::vector<uint32_t> ids,
                   tokenizer.Encode(prompt.text(), prompt.parse_special()));
  if (tokenizer.add_bos()) ids.insert(ids.begin(), *tokenizer.bos_id());
  return ids;
}

absl::StatusOr<std::vector<uint32_t>> EncodeChat(
    const v1::ChatPrompt& prompt, const ChatTemplate& chat_template) {
  std::vector<ChatMessage> messages;
  messages.reserve(prompt.messages_size());
  for (const v1::ChatMessage& message : prompt.messages()) {
    messages.push_back({.role = message.role(),
                        .content = message.content(),
                        .tool_calls = {}});
  }
  ChatOptions options;
  if (prompt.has_add_generation_prompt()) {
    options.add_generation_prompt = prompt.add_generation_prompt();
  }
  options.thinking = prompt.thinking();
  return chat_template.Encode(messages, options);
}

}  // namespace

size_t PromptBytes(const v1::Prompt& prompt) {
  size_t bytes = prompt.text().text().size();
  for (const v1::ChatMessage& message : prompt.chat().messages()) {
    bytes +=
        kChatMessageBytes + message.role().size() + message.content().size();
  }
  return bytes;
}

absl::StatusOr<std::vector<uint32_t>> EncodePrompt(const v1::Prompt& prompt,
                                                   const TextModel& text) {
  if (prompt.has_text()) return EncodeText(prompt.text(), *text.tokenizer);
  if (prompt.has_chat()) return EncodeChat(prompt.chat(), text.chat_template);
  return std::vector<uint32_t>(prompt.token_ids().ids().begin(),
                               prompt.token_ids().ids().end());
}

}  // namespace baton
