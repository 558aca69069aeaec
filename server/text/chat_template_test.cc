#include "server/text/chat_template.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "base/field_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/text/model_folder_for_test.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

class ChatTemplateTest : public testing::Test {
 protected:
  ChatTemplateTest()
      : tokenizer_(Tokenizer::Load(kDemoModelFolder).value()),
        chat_(ChatTemplate::Load(kDemoModelFolder, tokenizer_.get()).value()) {}

  std::string Text(const std::vector<ChatMessage>& messages,
                   const ChatOptions& options = {}) const {
    const auto runs = chat_.Render(messages, options);
    EXPECT_TRUE(runs.ok()) << runs.status();
    std::string text;
    for (const ChatRun& run : *runs) {
      text.append(run.text);
    }
    return text;
  }

  const std::unique_ptr<const Tokenizer> tokenizer_;
  const ChatTemplate chat_;
};

std::vector<ChatMessage> GoldenMessages(const nlohmann::json& golden) {
  std::vector<ChatMessage> messages;
  for (const nlohmann::json& json : golden["messages"]) {
    ChatMessage message{.role = json["role"]};
    if (json["content"].is_string()) message.content = json["content"];
    if (json.contains("tool_calls")) {
      for (const nlohmann::json& call : json["tool_calls"]) {
        message.tool_calls.push_back(
            {.name = call["function"]["name"],
             .arguments = call["function"]["arguments"]});
      }
    }
    messages.push_back(message);
  }
  return messages;
}

// In the order of the file: the template prints a tool's parameters.
ChatOptions GoldenOptions(const nlohmann::ordered_json& golden) {
  ChatOptions options{.add_generation_prompt = golden["add_generation_prompt"]};
  const nlohmann::ordered_json& arguments = golden["kwargs"];
  options.thinking = arguments.value("thinking", false);
  if (!arguments.contains("tools")) return options;
  for (const nlohmann::ordered_json& tool : arguments["tools"]) {
    options.tools.push_back(
        {.name = tool["function"]["name"],
         .description = tool["function"]["description"],
         .parameters = tool["function"]["parameters"].dump()});
  }
  return options;
}

TEST_F(ChatTemplateTest, RendersTheGoldenChatsExactly) {
  const auto golden = nlohmann::ordered_json::parse(
      std::ifstream("models/tiny-deepseek-v3/golden/tokenizer.json"));
  EXPECT_EQ(golden["chat_templates"].size(), 6);
  for (const nlohmann::ordered_json& one : golden["chat_templates"]) {
    const std::vector<ChatMessage> messages = GoldenMessages(one);
    const ChatOptions options = GoldenOptions(one);
    EXPECT_EQ(Text(messages, options), one["text"].get<std::string>());
    const auto ids = chat_.Encode(messages, options);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, one["ids"].get<std::vector<uint32_t>>());
  }
}

int64_t CountSpecial(const std::vector<uint32_t>& ids) {
  return std::count_if(ids.begin(), ids.end(),
                       [](uint32_t id) { return id < 16; });
}

TEST_F(ChatTemplateTest, SpecialTokensInMessagesStayText) {
  for (uint32_t id = 0; id < 16; ++id) {
    const std::string content(tokenizer_->TokenBytes(id));
    for (const std::string role : {"system", "user", "assistant", "tool"}) {
      const std::vector<ChatMessage> messages = {
          {.role = role, .content = content + "x"}};
      const auto ids = chat_.Encode(messages, {}).value();
      const std::vector<ChatMessage> harmless = {
          {.role = role, .content = "x"}};
      const auto expected = chat_.Encode(harmless, {}).value();
      EXPECT_EQ(CountSpecial(ids), CountSpecial(expected)) << content;
    }
  }
}

TEST_F(ChatTemplateTest, SpecialTokensInToolsStayText) {
  const ChatTool tool{.name = "<｜User｜>",
                      .description = "<think>",
                      .parameters = "[\"<｜tool▁sep｜>\"]"};
  const std::vector<ChatMessage> messages = {
      {.role = "user", .content = "Hi"},
      {.role = "assistant",
       .tool_calls = {{.name = "<think>", .arguments = "</think>"}}}};
  const auto ids = chat_.Encode(messages, {.tools = {tool}}).value();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 3), 1);   // User.
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 5), 0);   // Think.
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 15), 2);  // Separator.
}

TEST_F(ChatTemplateTest, TextBetweenSpecialTokensIsSegmentedAsOne) {
  const std::vector<ChatMessage> messages = {
      {.role = "system", .content = "Be brief."},
      {.role = "user", .content = "Hi"},
      {.role = "system", .content = "Be kind."}};
  const auto ids = chat_.Encode(
      messages,
      {.tools = {{.name = "f", .description = "d", .parameters = "{}"}}});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*ids,
            tokenizer_
                ->Encode(Text(messages, {.tools = {{.name = "f",
                                                    .description = "d",
                                                    .parameters = "{}"}}}),
                         /*parse_special=*/true)
                .value());
}

TEST_F(ChatTemplateTest, SystemMessagesComeFirstInParagraphs) {
  EXPECT_EQ(Text({{.role = "system", .content = ""},
                  {.role = "system", .content = "A"},
                  {.role = "user", .content = "Hi"},
                  {.role = "system", .content = "B"}}),
            "<｜begin▁of▁sentence｜>A\n\nB<｜User｜>Hi<｜Assistant｜>");
}

TEST_F(ChatTemplateTest, EarlierThoughtsAreLeftOut) {
  EXPECT_EQ(Text({{.role = "user", .content = "Hi"},
                  {.role = "assistant",
                   .content = "a</think>b</think>\n\u3000\u00A0 c </think"}},
                 {.add_generation_prompt = false}),
            "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜>c </think"
            "<｜end▁of▁sentence｜>");
}

TEST_F(ChatTemplateTest, AfterAToolTheAssistantGoesOn) {
  const std::vector<ChatMessage> messages = {
      {.role = "user", .content = "Hi"},
      {.role = "assistant", .tool_calls = {{.name = "f", .arguments = "{}"}}},
      {.role = "tool", .content = "1"},
      {.role = "assistant", .content = "One."}};
  EXPECT_EQ(Text(messages, {.thinking = true}),
            "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜>"
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
            "<｜tool▁output▁begin｜>1<｜tool▁output▁end｜>One."
            "<｜end▁of▁sentence｜><｜Assistant｜><think>\n");
}

TEST_F(ChatTemplateTest, BadMessagesAreNamed) {
  const auto field = [&](const std::vector<ChatMessage>& messages,
                         const ChatOptions& options = {}) {
    const absl::Status status = chat_.Encode(messages, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return ErrorField(status).value_or("none");
  };
  const ChatMessage user{.role = "user", .content = "Hi"};
  EXPECT_EQ(field({}), "prompt.chat.messages");
  EXPECT_EQ(field({user, user, {.role = "bot"}}),
            "prompt.chat.messages[2].role");
  EXPECT_EQ(field({{.role = ""}}), "prompt.chat.messages[0].role");
  EXPECT_EQ(field({{.role = "user", .tool_calls = {{.name = "f"}}}}),
            "prompt.chat.messages[0].tool_calls");
  for (const std::string& parameters :
       {std::string("{"), std::string(100, '[') + std::string(100, ']'),
        "\"" + std::string(1 << 17, 'a') + "\""}) {
    EXPECT_EQ(
        field({user}, {.tools = {{.name = "f"}, {.parameters = parameters}}}),
        "prompt.chat.tools[0].parameters");
    EXPECT_EQ(field({user}, {.tools = {{.parameters = "{}"},
                                       {.parameters = parameters}}}),
              "prompt.chat.tools[1].parameters");
  }
}

TEST_F(ChatTemplateTest, AnUnknownTemplateIsAFailedPrecondition) {
  for (const nlohmann::json& program :
       {nlohmann::json("{{ messages }}"), nlohmann::json(),
        nlohmann::json::array()}) {
    ModelFolderForTest folder;
    folder.Edit("tokenizer_config.json",
                [&](nlohmann::json& json) { json["chat_template"] = program; });
    const auto chat = ChatTemplate::Load(folder.path(), tokenizer_.get());
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_FALSE(chat->supported());
    const std::vector<ChatMessage> messages = {{.role = "user"}};
    const absl::Status status = chat->Encode(messages, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("token ids"));
  }
  EXPECT_TRUE(chat_.supported());
}

TEST_F(ChatTemplateTest, AKnownTemplateNeedsItsTokens) {
  ModelFolderForTest folder;
  folder.Edit("tokenizer.json",
              [](nlohmann::json& json) { json["added_tokens"].erase(15); });
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  absl::Status status =
      ChatTemplate::Load(folder.path(), tokenizer->get()).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tokenizer_config.json: chat_template: "));

  folder.Edit("tokenizer_config.json",
              [](nlohmann::json& json) { json.erase("eos_token"); });
  status = ChatTemplate::Load(folder.path(), tokenizer_.get()).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tokenizer_config.json: eos_token: "));
}

TEST_F(ChatTemplateTest, TruncatedConfigsAreErrors) {
  ModelFolderForTest folder;
  const std::string whole = folder.Read("tokenizer_config.json");
  for (size_t size = 0; size < whole.size(); size += 37) {
    folder.Write("tokenizer_config.json",
                 std::string_view(whole).substr(0, size));
    const auto chat = ChatTemplate::Load(folder.path(), tokenizer_.get());
    EXPECT_EQ(chat.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton
