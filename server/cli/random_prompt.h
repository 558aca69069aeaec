// Token ids that mean nothing, for a load whose prompts share prefixes as a
// trace says.
#ifndef BATON_SERVER_CLI_RANDOM_PROMPT_H_
#define BATON_SERVER_CLI_RANDOM_PROMPT_H_

#include <cstdint>
#include <vector>

#include "server/cli/timed_requests.h"

namespace baton {

// Low ids are special tokens in the families served.
inline constexpr uint32_t kFirstPlainToken = 16;

// As long as the request's shape says, of ids from kFirstPlainToken on. Blocks
// of the same name have the same tokens in all prompts of one seed; a prompt
// without blocks shares none with others. Pure. REQUIRES: vocab_size above
// kFirstPlainToken; as many blocks as the length needs, or none.
std::vector<uint32_t> RandomPrompt(const TimedRequest& request,
                                   uint32_t vocab_size, uint64_t seed,
                                   uint64_t index);

}  // namespace baton

#endif  // BATON_SERVER_CLI_RANDOM_PROMPT_H_
