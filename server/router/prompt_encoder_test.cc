#include "server/router/prompt_encoder.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/baton/v1/inference.pb.h"
#include "server/text/detokenizer.h"

namespace baton {
namespace {

constexpr char kBos[] = "<｜begin▁of▁sentence｜>";

const TextModel& DemoText() {
  static const auto* const text =
      new TextModel(*LoadTextModel("models/tiny-deepseek-v3"));
  return *text;
}

std::string EncodeAndDecode(const v1::Prompt& prompt) {
  return Decode(*DemoText().tokenizer, *EncodePrompt(prompt, DemoText()),
                /*skip_special_tokens=*/false);
}

TEST(PromptEncoderTest, TakesIdsAsTheyAre) {
  v1::Prompt prompt;
  for (uint32_t id : {9, 0, 9}) prompt.mutable_token_ids()->add_ids(id);
  EXPECT_EQ(*EncodePrompt(prompt, DemoText()),
            (std::vector<uint32_t>{9, 0, 9}));
}

TEST(PromptEncoderTest, CountsWhatEmptyMessagesCost) {
  v1::Prompt prompt;
  prompt.mutable_token_ids()->add_ids(9);
  EXPECT_EQ(PromptBytes(prompt), 0u);
  prompt.mutable_text()->set_text("Once");
  EXPECT_EQ(PromptBytes(prompt), 4u);
  prompt.mutable_chat()->add_messages()->set_role("user");
  EXPECT_EQ(PromptBytes(prompt), kChatMessageBytes + 4);
  prompt.mutable_chat()->add_messages()->set_content("Hi");
  EXPECT_EQ(PromptBytes(prompt), 2 * kChatMessageBytes + 6);
}

TEST(PromptEncoderTest, PutsBosInFrontOfText) {
  v1::Prompt prompt;
  prompt.mutable_text()->set_text("Once");
  EXPECT_EQ(EncodeAndDecode(prompt), std::string(kBos) + "Once");
  prompt.mutable_text()->set_text("");
  EXPECT_EQ(*EncodePrompt(prompt, DemoText()),
            (std::vector<uint32_t>{*DemoText().tokenizer->bos_id()}));
}

TEST(PromptEncoderTest, ReadsSpecialTokensInTextOnlyWhenAsked) {
  v1::Prompt prompt;
  prompt.mutable_text()->set_text("<｜User｜>");
  const size_t as_text = EncodePrompt(prompt, DemoText())->size();
  EXPECT_GT(as_text, 2u);
  prompt.mutable_text()->set_parse_special(true);
  EXPECT_EQ(EncodePrompt(prompt, DemoText())->size(), 2u);
}

TEST(PromptEncoderTest, RendersChatWithTheModelsTemplate) {
  v1::Prompt prompt;
  v1::ChatMessage* const message = prompt.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("Hi");
  const std::string opened = EncodeAndDecode(prompt);
  EXPECT_EQ(opened.find(std::string(kBos) + "<｜User｜>Hi<｜Assistant｜>"), 0u)
      << opened;
  prompt.mutable_chat()->set_add_generation_prompt(false);
  EXPECT_EQ(EncodeAndDecode(prompt), std::string(kBos) + "<｜User｜>Hi");
  prompt.mutable_chat()->set_add_generation_prompt(true);
  prompt.mutable_chat()->set_thinking(true);
  EXPECT_NE(EncodeAndDecode(prompt), opened);
}

}  // namespace
}  // namespace baton
