#include "server/text/chat_renderers.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

// The demo model's.
constexpr char kDeepSeekHash[] = "65050f51a7b3fd6e086bb37cc278bed0";

TEST(ChatRenderersTest, OnlyKnownTemplatesHaveARenderer) {
  ASSERT_NE(FindChatRenderer(kDeepSeekHash), nullptr);
  EXPECT_EQ(FindChatRenderer("65050f51a7b3fd6e086bb37cc278bed1"), nullptr);
  EXPECT_EQ(FindChatRenderer(""), nullptr);
}

TEST(ChatRenderersTest, EverySpecialTokenInUseIsListed) {
  const std::vector<ChatMessage> messages = {
      {.role = "system", .content = "S"},
      {.role = "user", .content = "U"},
      {.role = "assistant", .tool_calls = {{.name = "f", .arguments = "{}"}}},
      {.role = "tool", .content = "T"},
      {.role = "assistant", .content = "A"}};
  const ChatOptions options{.thinking = true, .tools = {{.name = "f"}}};
  const ChatRenderer* renderer = FindChatRenderer(kDeepSeekHash);
  ASSERT_NE(renderer, nullptr);
  ChatRuns runs;
  renderer->render({.messages = messages,
                    .options = options,
                    .tool_parameters = {"{}"},
                    .bos_token = "BOS",
                    .eos_token = "EOS"},
                   &runs);
  std::vector<std::string> used = {"BOS", "EOS"};
  used.insert(used.end(), renderer->special_tokens.begin(),
              renderer->special_tokens.end());
  std::vector<std::string> seen;
  bool last_was_text = false;
  for (const ChatRun& run : runs.Take()) {
    if (run.special) seen.push_back(run.text);
    EXPECT_FALSE(!run.special && last_was_text);
    last_was_text = !run.special;
  }
  std::sort(used.begin(), used.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  EXPECT_EQ(seen, used);
}

}  // namespace
}  // namespace baton
