// Chat messages to token ids, by templates that are known by their hash.
#ifndef BATON_SERVER_TEXT_CHAT_TEMPLATE_H_
#define BATON_SERVER_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/text/tokenizer.h"

namespace baton {

struct ChatToolCall {
  std::string name;
  std::string arguments;  // As the model wrote them: JSON text, taken as it is.
};

struct ChatMessage {
  std::string role;  // "system", "user", "assistant" or "tool".
  std::string content;
  std::vector<ChatToolCall> tool_calls;  // Of an assistant's message.
};

struct ChatTool {
  std::string name;
  std::string description;
  std::string parameters;  // A JSON schema.
};

struct ChatOptions {
  // End with the assistant's opening, so that the model answers.
  bool add_generation_prompt = true;
  // Open a reasoning block where the template has one.
  bool thinking = false;
  std::vector<ChatTool> tools;
};

// A run of rendered chat: a special token's content, or text that is encoded as
// text whatever it holds. Two texts never follow each other, so that what
// stands between two special tokens is segmented as one.
struct ChatRun {
  bool special = false;
  std::string text;
};

// A model's chat template. Templates are programs (Jinja); this runs none: each
// one known is a row {hash of the program, function that does the same} in
// chat_template.cc. Special tokens come from the template alone: a message that
// spells one out is encoded as plain text. Thread-safe: immutable.
class ChatTemplate final {
 public:
  // Reads chat_template, bos_token and eos_token of tokenizer_config.json.
  // `tokenizer` is borrowed and outlives this. An absent or unknown template is
  // no error here; a known one whose special tokens the tokenizer lacks is.
  static absl::StatusOr<ChatTemplate> Load(const std::string& model_folder,
                                           const Tokenizer* tokenizer);

  bool supported() const { return render_ != nullptr; }

  // FAILED_PRECONDITION where the template is not known; INVALID_ARGUMENT
  // naming the field of the public request ("prompt.chat.messages[2].role").
  absl::StatusOr<std::vector<uint32_t>> Encode(
      std::span<const ChatMessage> messages, const ChatOptions& options) const;

  // What Encode encodes, for people and tests.
  absl::StatusOr<std::vector<ChatRun>> Render(
      std::span<const ChatMessage> messages, const ChatOptions& options) const;

 private:
  struct Row;
  class Runs;
  // Messages are valid; `tool_parameters` are the tools' as the template prints
  // JSON.
  struct Input {
    std::span<const ChatMessage> messages;
    const ChatOptions& options;
    std::vector<std::string> tool_parameters;
  };
  using RenderFunction = void (*)(const Input& input, Runs* runs);

  ChatTemplate() = default;

  const Tokenizer* tokenizer_ = nullptr;
  RenderFunction render_ = nullptr;
  std::string unsupported_reason_;
  std::string bos_token_;
  std::string eos_token_;
};

}  // namespace baton

#endif  // BATON_SERVER_TEXT_CHAT_TEMPLATE_H_
