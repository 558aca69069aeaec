// A request's prompt as token ids.
#ifndef BATON_SERVER_ROUTER_PROMPT_ENCODER_H_
#define BATON_SERVER_ROUTER_PROMPT_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/text/text_model.h"

namespace baton {

namespace v1 {
class Prompt;
}  // namespace v1

// What a chat message costs beside its text: its tags, and being looked at.
inline constexpr size_t kChatMessageBytes = 64;

// Bytes of text that EncodePrompt works on; 0 for ids.
size_t PromptBytes(const v1::Prompt& prompt);

// Takes ids as they are; puts BOS in front of text where the model's files say
// so; renders chat by the model's template (FAILED_PRECONDITION where it is not
// known). Linear in the text. REQUIRES: ValidatePrompt said OK.
absl::StatusOr<std::vector<uint32_t>> EncodePrompt(const v1::Prompt& prompt,
                                                   const TextModel& text);

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_PROMPT_ENCODER_H_
