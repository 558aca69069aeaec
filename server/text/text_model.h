// All that the router knows of a model: its text side, loaded from one folder.
#ifndef BATON_SERVER_TEXT_TEXT_MODEL_H_
#define BATON_SERVER_TEXT_TEXT_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/text/chat_template.h"
#include "server/text/generation_config.h"
#include "server/text/tokenizer.h"

namespace baton {

// Thread-safe as const.
struct TextModel {
  std::unique_ptr<const Tokenizer> tokenizer;
  ChatTemplate chat_template;  // Borrows *tokenizer.
  GenerationConfig generation_config;
  std::string text_hash;
  // config.json's: the logits' width. Ids from the tokenizer's vocab_size() up
  // to here have no text.
  uint32_t vocab_size = 0;
};

// Reads tokenizer.json, tokenizer_config.json, generation_config.json and
// config.json. Errors name file and field.
absl::StatusOr<TextModel> LoadTextModel(const std::string& model_folder);

}  // namespace baton

#endif  // BATON_SERVER_TEXT_TEXT_MODEL_H_
