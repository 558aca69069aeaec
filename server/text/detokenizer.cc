#include "server/text/detokenizer.h"

#include <string_view>

#include "server/text/utf8.h"

namespace baton {

Detokenizer::Detokenizer(const Tokenizer* tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

void Detokenizer::Append(uint32_t id, std::string* out) {
  if (skip_special_tokens_ && tokenizer_->IsSpecial(id)) return;
  pending_.append(tokenizer_->TokenBytes(id));
  const size_t incomplete = AppendUtf8(pending_, out);
  pending_.erase(0, pending_.size() - incomplete);
}

void Detokenizer::Flush(std::string* out) {
  if (!pending_.empty()) out->append(kReplacementCharacter);
  pending_.clear();
}

std::string Decode(const Tokenizer& tokenizer, std::span<const uint32_t> ids,
                   bool skip_special_tokens) {
  std::string bytes;
  for (const uint32_t id : ids) {
    if (skip_special_tokens && tokenizer.IsSpecial(id)) continue;
    bytes.append(tokenizer.TokenBytes(id));
  }
  return ReplaceInvalidUtf8(bytes);
}

}  // namespace baton
