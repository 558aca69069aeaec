#include "server/text/tokenizer_file.h"

#include <optional>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "server/text/json_file.h"

namespace baton {
namespace {

// What ByteLevel splits by when it is asked to (GPT-2's pattern).
constexpr std::string_view kByteLevelPattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";

absl::Status RequireFalse(const JsonObject& object, const char* key) {
  ASSIGN_OR_RETURN(const std::optional<bool> value, object.Bool(key));
  if (value.value_or(false)) return object.Error(key, "true is not supported");
  return absl::OkStatus();
}

// Null, empty and absent are the same.
absl::Status RequireEmpty(const JsonObject& object, const char* key) {
  const Json* value = object.Find(key);
  if (value == nullptr || *value == "") return absl::OkStatus();
  return object.Error(key, "is not supported");
}

// An empty sequence is as good as none.
absl::Status RequireNoNormalizer(const JsonObject& root) {
  if (root.Find("normalizer") == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const JsonObject normalizer,
                   root.RequiredObject("normalizer"));
  ASSIGN_OR_RETURN(const std::string type, normalizer.RequiredString("type"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const Json* steps,
                     normalizer.RequiredArray("normalizers"));
    if (steps->empty()) return absl::OkStatus();
  }
  return root.Error("normalizer", "\"" + type + "\" is not supported");
}

absl::Status RequireType(const JsonObject& object, std::string_view type) {
  ASSIGN_OR_RETURN(const std::string found, object.RequiredString("type"));
  if (found == type) return absl::OkStatus();
  return object.Error("type", "\"" + found + "\" is not supported, only \"" +
                                  std::string(type) + "\"");
}

std::string Indexed(const std::string& field, size_t index) {
  return field + "[" + std::to_string(index) + "]";
}

void AddPattern(const JsonObject& step, std::string_view pattern,
                TokenizerFile* file) {
  file->patterns.emplace_back(pattern);
  file->pattern_fields.push_back(step.Name("pattern"));
}

absl::Status ReadSplit(const JsonObject& step, TokenizerFile* file) {
  ASSIGN_OR_RETURN(const std::string behavior, step.RequiredString("behavior"));
  if (behavior != "Isolated") {
    return step.Error(
        "behavior", "\"" + behavior + "\" is not supported, only \"Isolated\"");
  }
  // Isolated cuts at both ends of a match, so `invert` makes no difference.
  RETURN_IF_ERROR(step.Bool("invert").status());
  ASSIGN_OR_RETURN(const JsonObject pattern, step.RequiredObject("pattern"));
  ASSIGN_OR_RETURN(const std::string regex, pattern.RequiredString("Regex"));
  AddPattern(step, regex, file);
  return absl::OkStatus();
}

// Whether it is the byte-level step, which has to be the last.
absl::StatusOr<bool> ReadPreTokenizerStep(const JsonObject& step,
                                          TokenizerFile* file) {
  ASSIGN_OR_RETURN(const std::string type, step.RequiredString("type"));
  if (type == "Split") {
    RETURN_IF_ERROR(ReadSplit(step, file));
    return false;
  }
  if (type == "Digits") {
    ASSIGN_OR_RETURN(const std::optional<bool> individual,
                     step.Bool("individual_digits"));
    AddPattern(step, individual.value_or(false) ? "\\p{N}" : "\\p{N}+", file);
    return false;
  }
  if (type == "ByteLevel") {
    RETURN_IF_ERROR(RequireFalse(step, "add_prefix_space"));
    ASSIGN_OR_RETURN(const std::optional<bool> use_regex,
                     step.Bool("use_regex"));
    if (use_regex.value_or(true)) AddPattern(step, kByteLevelPattern, file);
    return true;
  }
  return step.Error("type", "\"" + type +
                                "\" is not supported, only \"Split\", "
                                "\"Digits\" and \"ByteLevel\"");
}

absl::Status ReadPreTokenizer(const JsonObject& root, TokenizerFile* file) {
  ASSIGN_OR_RETURN(const JsonObject pre_tokenizer,
                   root.RequiredObject("pre_tokenizer"));
  ASSIGN_OR_RETURN(const std::string type,
                   pre_tokenizer.RequiredString("type"));
  bool is_byte_level = false;
  if (type != "Sequence") {
    ASSIGN_OR_RETURN(is_byte_level, ReadPreTokenizerStep(pre_tokenizer, file));
  } else {
    ASSIGN_OR_RETURN(const Json* steps,
                     pre_tokenizer.RequiredArray("pretokenizers"));
    for (size_t i = 0; i < steps->size(); ++i) {
      const std::string name = Indexed("pre_tokenizer.pretokenizers", i);
      ASSIGN_OR_RETURN(const JsonObject step,
                       JsonObject::Create(root.file(), name, (*steps)[i]));
      if (is_byte_level) return step.Error("type", "follows ByteLevel");
      ASSIGN_OR_RETURN(is_byte_level, ReadPreTokenizerStep(step, file));
    }
  }
  if (is_byte_level) return absl::OkStatus();
  return root.Error("pre_tokenizer", "does not end with ByteLevel");
}

absl::Status ReadVocab(const JsonObject& model, TokenizerFile* file) {
  ASSIGN_OR_RETURN(const JsonObject vocab, model.RequiredObject("vocab"));
  const Json& entries = *model.Find("vocab");
  file->vocab.reserve(entries.size());
  for (const auto& [token, value] : entries.items()) {
    // Not by key: a token may have the form of any string.
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxVocabSize) {
      return vocab.Error(token.c_str(), "is not an id");
    }
    if (token.empty()) return model.Error("vocab", "has an empty token");
    file->vocab.emplace(token, value.get<uint32_t>());
  }
  return absl::OkStatus();
}

// The two tokens of a merge, written as ["a", "b"] or as "a b".
std::optional<std::pair<std::string, std::string>> MergePair(
    const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
      merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (!merge.is_string()) return std::nullopt;
  const std::string text = merge.get<std::string>();
  const size_t space = text.find(' ');
  if (space == std::string::npos ||
      text.find(' ', space + 1) != std::string::npos) {
    return std::nullopt;
  }
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

absl::Status ReadMerges(const JsonObject& model, TokenizerFile* file) {
  ASSIGN_OR_RETURN(const Json* merges, model.RequiredArray("merges"));
  file->merges.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); ++i) {
    const std::string name = Indexed(model.Name("merges"), i);
    const auto pair = MergePair((*merges)[i]);
    if (!pair.has_value()) {
      return JsonFieldError(model.file(), name, "is not a pair of tokens");
    }
    const auto left = file->vocab.find(pair->first);
    const auto right = file->vocab.find(pair->second);
    const auto merged = file->vocab.find(pair->first + pair->second);
    if (left == file->vocab.end() || right == file->vocab.end() ||
        merged == file->vocab.end()) {
      return JsonFieldError(model.file(), name,
                            "has a token that is not in model.vocab");
    }
    file->merges.push_back({left->second, right->second, merged->second});
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const JsonObject& root, TokenizerFile* file) {
  ASSIGN_OR_RETURN(const JsonObject model, root.RequiredObject("model"));
  RETURN_IF_ERROR(RequireType(model, "BPE"));
  ASSIGN_OR_RETURN(const std::optional<double> dropout,
                   model.Number("dropout"));
  if (dropout.value_or(0) != 0) {
    return model.Error("dropout", "is not supported");
  }
  RETURN_IF_ERROR(RequireEmpty(model, "continuing_subword_prefix"));
  RETURN_IF_ERROR(RequireEmpty(model, "end_of_word_suffix"));
  // unk_token, fuse_unk and byte_fallback never matter: all bytes are tokens.
  ASSIGN_OR_RETURN(const std::optional<bool> ignore_merges,
                   model.Bool("ignore_merges"));
  file->ignore_merges = ignore_merges.value_or(false);
  RETURN_IF_ERROR(ReadVocab(model, file));
  return ReadMerges(model, file);
}

absl::StatusOr<AddedToken> ReadAddedToken(const JsonObject& json) {
  AddedToken token;
  ASSIGN_OR_RETURN(token.id, json.RequiredUnsigned("id", kMaxVocabSize - 1));
  ASSIGN_OR_RETURN(token.content, json.RequiredString("content"));
  if (token.content.empty()) return json.Error("content", "is empty");
  for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
    RETURN_IF_ERROR(RequireFalse(json, flag));
  }
  ASSIGN_OR_RETURN(const std::optional<bool> special, json.Bool("special"));
  token.special = special.value_or(false);
  // Without a normalizer the flag only says in which pass it is searched for.
  ASSIGN_OR_RETURN(const std::optional<bool> normalized,
                   json.Bool("normalized"));
  token.normalized = normalized.value_or(!token.special);
  return token;
}

absl::Status ReadAddedTokens(const JsonObject& root, TokenizerFile* file) {
  if (root.Find("added_tokens") == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Json* tokens, root.RequiredArray("added_tokens"));
  for (size_t i = 0; i < tokens->size(); ++i) {
    const std::string name = Indexed("added_tokens", i);
    ASSIGN_OR_RETURN(const JsonObject json,
                     JsonObject::Create(root.file(), name, (*tokens)[i]));
    ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(json));
    const auto in_vocab = file->vocab.find(token.content);
    if (in_vocab != file->vocab.end() && in_vocab->second != token.id) {
      return json.Error("id", "is not what model.vocab says");
    }
    file->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerFile> ReadTokenizerFile(const std::string& path) {
  ASSIGN_OR_RETURN(const JsonFile json, JsonFile::Read(path));
  const JsonObject root = json.root();
  RETURN_IF_ERROR(RequireNoNormalizer(root));
  TokenizerFile file;
  RETURN_IF_ERROR(ReadPreTokenizer(root, &file));
  ASSIGN_OR_RETURN(const JsonObject decoder, root.RequiredObject("decoder"));
  RETURN_IF_ERROR(RequireType(decoder, "ByteLevel"));
  RETURN_IF_ERROR(ReadModel(root, &file));
  RETURN_IF_ERROR(ReadAddedTokens(root, &file));
  return file;
}

absl::StatusOr<std::optional<std::string>> ReadTokenContent(
    const JsonObject& config, const char* key) {
  const Json* value = config.Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) return config.String(key);
  ASSIGN_OR_RETURN(const JsonObject token, config.RequiredObject(key));
  return token.RequiredString("content");
}

}  // namespace baton
