#include "server/text/text_model.h"

#include <utility>

#include "base/status_macros.h"
#include "server/text/model_text_config.h"
#include "server/text/text_hash.h"

namespace baton {

absl::StatusOr<TextModel> LoadTextModel(const std::string& model_folder) {
  ASSIGN_OR_RETURN(const ModelTextConfig config,
                   LoadModelTextConfig(model_folder));
  ASSIGN_OR_RETURN(std::unique_ptr<const Tokenizer> tokenizer,
                   Tokenizer::Load(model_folder));
  if (tokenizer->vocab_size() > config.vocab_size) {
    return JsonFieldError(model_folder + "/config.json", "vocab_size",
                          "is less than the tokenizer's, " +
                              std::to_string(tokenizer->vocab_size()));
  }
  ASSIGN_OR_RETURN(ChatTemplate chat_template,
                   ChatTemplate::Load(model_folder, tokenizer.get()));
  ASSIGN_OR_RETURN(GenerationConfig generation_config,
                   LoadGenerationConfig(model_folder));
  ASSIGN_OR_RETURN(std::string text_hash, TextHash(model_folder));
  return TextModel{.tokenizer = std::move(tokenizer),
                   .chat_template = std::move(chat_template),
                   .generation_config = std::move(generation_config),
                   .text_hash = std::move(text_hash),
                   .vocab_size = config.vocab_size};
}

}  // namespace baton
