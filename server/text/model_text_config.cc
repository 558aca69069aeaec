#include "server/text/model_text_config.h"

#include "base/status_macros.h"
#include "server/text/tokenizer_file.h"

namespace baton {

absl::StatusOr<ModelTextConfig> LoadModelTextConfig(
    const std::string& model_folder) {
  ASSIGN_OR_RETURN(const JsonFile file,
                   JsonFile::Read(model_folder + "/config.json"));
  const JsonObject root = file.root();
  ModelTextConfig config;
  ASSIGN_OR_RETURN(config.vocab_size,
                   root.RequiredUnsigned("vocab_size", kMaxVocabSize));
  if (config.vocab_size == 0) return root.Error("vocab_size", "is 0");
  ASSIGN_OR_RETURN(config.eos_token_ids,
                   ReadEosTokenIds(root, config.vocab_size));
  return config;
}

absl::StatusOr<std::vector<uint32_t>> ReadEosTokenIds(const JsonObject& object,
                                                      uint32_t vocab_size) {
  constexpr char kKey[] = "eos_token_id";
  std::vector<uint32_t> ids;
  const Json* value = object.Find(kKey);
  if (value == nullptr) return ids;
  const Json list = value->is_array() ? *value : Json::array({*value});
  if (list.size() > kMaxEosTokenIds) {
    return object.Error(
        kKey, "has more than " + std::to_string(kMaxEosTokenIds) + " ids");
  }
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= vocab_size) {
      return object.Error(kKey, "is not a token id below vocab_size " +
                                    std::to_string(vocab_size));
    }
    ids.push_back(id.get<uint32_t>());
  }
  return ids;
}

}  // namespace baton
