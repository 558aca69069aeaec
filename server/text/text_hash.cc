#include "server/text/text_hash.h"

#include "absl/status/status.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "server/text/content_hash.h"
#include "server/text/json_file.h"
#include "server/text/model_text_config.h"

namespace baton {

absl::StatusOr<std::string> TextHash(const std::string& model_folder) {
  ContentHash hash;
  for (const char* name : {"/tokenizer.json", "/tokenizer_config.json"}) {
    ASSIGN_OR_RETURN(const std::string contents,
                     ReadTextFile(model_folder + name, kMaxTextFileBytes));
    hash.Add(contents);
  }
  absl::StatusOr<std::string> generation_config =
      ReadTextFile(model_folder + "/generation_config.json", kMaxTextFileBytes);
  if (absl::IsNotFound(generation_config.status())) generation_config = "";
  RETURN_IF_ERROR(generation_config.status());
  hash.Add(*generation_config);
  ASSIGN_OR_RETURN(const ModelTextConfig config,
                   LoadModelTextConfig(model_folder));
  hash.Add(std::to_string(config.vocab_size));
  return hash.Hex();
}

}  // namespace baton
