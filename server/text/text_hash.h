// One short name for all that turns text into ids and back.
#ifndef BATON_SERVER_TEXT_TEXT_HASH_H_
#define BATON_SERVER_TEXT_TEXT_HASH_H_

#include <string>

#include "absl/status/statusor.h"

namespace baton {

// 32 hex digits over the contents of tokenizer.json, tokenizer_config.json and
// generation_config.json (which may be missing) and config.json's vocab_size.
// Workers state it; the router refuses a worker whose differs from its own. It
// tells mistakes apart, not attacks.
absl::StatusOr<std::string> TextHash(const std::string& model_folder);

}  // namespace baton

#endif  // BATON_SERVER_TEXT_TEXT_HASH_H_
