#include "server/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/status_macros.h"
#include "server/text/added_tokens.h"
#include "server/text/bpe.h"
#include "server/text/byte_level.h"
#include "server/text/json_file.h"
#include "server/text/splitter.h"
#include "server/text/tokenizer_file.h"
#include "server/text/utf8.h"

namespace baton {
namespace {

struct Token {
  std::string bytes;
  bool added = false;
  bool special = false;
};

// The tokens by id, each with its raw bytes.
absl::StatusOr<std::vector<Token>> ListTokens(const std::string& path,
                                              const TokenizerFile& file) {
  uint32_t size = 0;
  for (const auto& [text, id] : file.vocab) size = std::max(size, id + 1);
  for (const AddedToken& added : file.added_tokens) {
    size = std::max(size, added.id + 1);
  }
  std::vector<Token> tokens(size);
  for (const auto& [text, id] : file.vocab) {
    if (!tokens[id].bytes.empty()) {
      return JsonFieldError(path, "model.vocab." + text,
                            "has the id of another token");
    }
    tokens[id].bytes = FromByteLevel(text).value_or(text);
  }
  for (size_t i = 0; i < file.added_tokens.size(); ++i) {
    const AddedToken& added = file.added_tokens[i];
    Token& token = tokens[added.id];
    const bool is_in_vocab = file.vocab.contains(added.content);
    if (token.added || (!is_in_vocab && !token.bytes.empty())) {
      return JsonFieldError(path, "added_tokens[" + std::to_string(i) + "].id",
                            "belongs to another token");
    }
    token = {.bytes = added.content, .added = true, .special = added.special};
  }
  return tokens;
}

// Plain text never becomes an added token: their merges and whole pieces are
// left out. (Text in which added tokens are searched for has none left for BPE
// to find.)
absl::StatusOr<Bpe> MakeBpe(const std::string& path, const TokenizerFile& file,
                            const std::vector<Token>& tokens) {
  std::array<uint32_t, 256> byte_ids = {};
  for (int byte = 0; byte < 256; ++byte) {
    std::string written;
    AppendCodePoint(ByteLevelCharacter(byte), &written);
    const auto found = file.vocab.find(written);
    if (found == file.vocab.end() || tokens[found->second].added) {
      return JsonFieldError(
          path, "model.vocab",
          "has no plain token for byte " + std::to_string(byte));
    }
    byte_ids[byte] = found->second;
  }
  Bpe bpe(byte_ids);
  for (const TokenizerFile::Merge& merge : file.merges) {
    if (tokens[merge.merged].added) continue;
    bpe.AddMerge(merge.left, merge.right, merge.merged);
  }
  if (!file.ignore_merges) return bpe;
  for (const auto& [text, id] : file.vocab) {
    if (!tokens[id].added && FromByteLevel(text).has_value()) {
      bpe.AddWholePiece(tokens[id].bytes, id);
    }
  }
  return bpe;
}

absl::StatusOr<std::vector<Splitter>> MakeSplitters(const std::string& path,
                                                    const TokenizerFile& file) {
  std::vector<Splitter> splitters;
  for (size_t i = 0; i < file.patterns.size(); ++i) {
    absl::StatusOr<Splitter> splitter = Splitter::Create(file.patterns[i]);
    if (!splitter.ok()) {
      const std::string problem(splitter.status().message());
      return JsonFieldError(path, file.pattern_fields[i], problem);
    }
    splitters.push_back(*std::move(splitter));
  }
  return splitters;
}

}  // namespace

struct Tokenizer::State {
  // Appends the ids of `text`, in which added tokens are first searched for by
  // the matchers from `pass` on.
  absl::Status EncodeFrom(size_t pass, std::string_view text,
                          std::vector<uint32_t>* ids) const;
  absl::Status EncodePlain(std::string_view text,
                           std::vector<uint32_t>* ids) const;
  std::optional<uint32_t> FindAddedToken(std::string_view content) const;
  // Sets what tokenizer_config.json decides, from the file at `path`.
  absl::Status ReadConfig(const std::string& path);

  std::vector<Token> tokens;  // By id; no bytes where there is none.
  // Tokens of the second are searched for in what the first leaves.
  std::array<AddedTokenMatcher, 2> added_tokens;
  std::vector<Splitter> splitters;
  Bpe bpe;
  std::optional<uint32_t> bos_id;
  bool add_bos = false;
};

absl::Status Tokenizer::State::EncodeFrom(size_t pass, std::string_view text,
                                          std::vector<uint32_t>* ids) const {
  if (pass == added_tokens.size()) return EncodePlain(text, ids);
  size_t begin = 0;
  while (const auto match = added_tokens[pass].Find(text, begin)) {
    RETURN_IF_ERROR(
        EncodeFrom(pass + 1, text.substr(begin, match->begin - begin), ids));
    ids->push_back(match->id);
    begin = match->end;
  }
  return EncodeFrom(pass + 1, text.substr(begin), ids);
}

absl::Status Tokenizer::State::EncodePlain(std::string_view text,
                                           std::vector<uint32_t>* ids) const {
  if (text.empty()) return absl::OkStatus();
  std::vector<std::string_view> pieces = {text};
  std::vector<std::string_view> smaller_pieces;
  for (const Splitter& splitter : splitters) {
    smaller_pieces.clear();
    RETURN_IF_ERROR(splitter.Split(pieces, &smaller_pieces));
    pieces.swap(smaller_pieces);
  }
  for (const std::string_view piece : pieces) bpe.Encode(piece, ids);
  return absl::OkStatus();
}

std::optional<uint32_t> Tokenizer::State::FindAddedToken(
    std::string_view content) const {
  for (const AddedTokenMatcher& matcher : added_tokens) {
    const std::optional<uint32_t> id = matcher.Lookup(content);
    if (id.has_value()) return id;
  }
  return std::nullopt;
}

absl::Status Tokenizer::State::ReadConfig(const std::string& path) {
  ASSIGN_OR_RETURN(const JsonFile file, JsonFile::Read(path));
  const JsonObject config = file.root();
  ASSIGN_OR_RETURN(const std::optional<bool> add_bos_token,
                   config.Bool("add_bos_token"));
  add_bos = add_bos_token.value_or(false);
  ASSIGN_OR_RETURN(const std::optional<std::string> bos,
                   ReadTokenContent(config, "bos_token"));
  if (bos.has_value()) {
    bos_id = FindAddedToken(*bos);
    if (!bos_id.has_value()) {
      return config.Error("bos_token", "is no added token of tokenizer.json");
    }
  }
  if (add_bos && !bos_id.has_value()) {
    return config.Error("add_bos_token", "is true, but there is no bos_token");
  }
  return absl::OkStatus();
}

Tokenizer::Tokenizer(std::unique_ptr<const State> state)
    : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Load(
    const std::string& model_folder) {
  const std::string path = model_folder + "/tokenizer.json";
  ASSIGN_OR_RETURN(const TokenizerFile file, ReadTokenizerFile(path));
  ASSIGN_OR_RETURN(std::vector<Token> tokens, ListTokens(path, file));
  ASSIGN_OR_RETURN(Bpe bpe, MakeBpe(path, file, tokens));
  ASSIGN_OR_RETURN(std::vector<Splitter> splitters, MakeSplitters(path, file));
  State state{.tokens = std::move(tokens),
              .added_tokens = {},
              .splitters = std::move(splitters),
              .bpe = std::move(bpe),
              .bos_id = std::nullopt,
              .add_bos = false};
  for (const AddedToken& token : file.added_tokens) {
    state.added_tokens[token.normalized ? 1 : 0].Add(token.content, token.id);
  }
  RETURN_IF_ERROR(state.ReadConfig(model_folder + "/tokenizer_config.json"));
  return std::unique_ptr<const Tokenizer>(
      new Tokenizer(std::make_unique<const State>(std::move(state))));
}

absl::StatusOr<std::vector<uint32_t>> Tokenizer::Encode(
    std::string_view text, bool parse_special) const {
  std::string repaired;
  if (!IsUtf8(text)) {
    repaired = ReplaceInvalidUtf8(text);
    text = repaired;
  }
  std::vector<uint32_t> ids;
  RETURN_IF_ERROR(parse_special ? state_->EncodeFrom(0, text, &ids)
                                : state_->EncodePlain(text, &ids));
  return ids;
}

uint32_t Tokenizer::vocab_size() const {
  return static_cast<uint32_t>(state_->tokens.size());
}

std::optional<uint32_t> Tokenizer::bos_id() const { return state_->bos_id; }

bool Tokenizer::add_bos() const { return state_->add_bos; }

std::string_view Tokenizer::TokenBytes(uint32_t id) const {
  return id < vocab_size() ? state_->tokens[id].bytes : std::string_view();
}

bool Tokenizer::IsSpecial(uint32_t id) const {
  return id < vocab_size() && state_->tokens[id].special;
}

absl::StatusOr<uint32_t> Tokenizer::TokenId(std::string_view content) const {
  const std::optional<uint32_t> id = state_->FindAddedToken(content);
  if (id.has_value()) return *id;
  return absl::NotFoundError("tokenizer.json has no added token \"" +
                             std::string(content) + "\"");
}

}  // namespace baton
