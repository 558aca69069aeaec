// Chat messages to token ids, by templates that are known by their hash.
#ifndef BATON_SERVER_TEXT_CHAT_TEMPLATE_H_
#define BATON_SERVER_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/chat_messages.h"
#include "server/text/chat_renderers.h"
#include "server/text/tokenizer.h"

namespace baton {

// A model's chat template. Templates are programs (Jinja); this runs none: each
// one known is a row {hash of the program, function that does the same} in
// chat_renderers.cc. Special tokens come from the template alone: a message
// that spells one out is encoded as plain text. Thread-safe: immutable.
class ChatTemplate final {
 public:
  // Reads chat_template, bos_token and eos_token of tokenizer_config.json.
  // `tokenizer` is borrowed and outlives this. An absent or unknown template is
  // no error here; a known one whose special tokens the tokenizer lacks is.
  static absl::StatusOr<ChatTemplate> Load(const std::string& model_folder,
                                           const Tokenizer* tokenizer);

  bool supported() const { return renderer_ != nullptr; }

  // FAILED_PRECONDITION where the template is not known; INVALID_ARGUMENT
  // naming the field of the public request ("prompt.chat.messages[2].role").
  absl::StatusOr<std::vector<uint32_t>> Encode(
      std::span<const ChatMessage> messages, const ChatOptions& options) const;

  // What Encode encodes, for people and tests.
  absl::StatusOr<std::vector<ChatRun>> Render(
      std::span<const ChatMessage> messages, const ChatOptions& options) const;

 private:
  ChatTemplate() = default;

  const Tokenizer* tokenizer_ = nullptr;
  const ChatRenderer* renderer_ = nullptr;  // Of the table; nullptr: unknown.
  std::string template_hash_;               // Empty where there is no template.
  std::string bos_token_;
  std::string eos_token_;
};

}  // namespace baton

#endif  // BATON_SERVER_TEXT_CHAT_TEMPLATE_H_
