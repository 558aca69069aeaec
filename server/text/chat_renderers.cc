#include "server/text/chat_renderers.h"

#include <cstddef>
#include <iterator>

#include "server/text/utf8.h"

namespace baton {
namespace {

// Python's str.isspace.
bool IsPythonSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 ||
         c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Python's str.lstrip().
std::string_view StripLeft(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = NextUtf8(text);
    if (step.kind != Utf8Step::kCharacter || !IsPythonSpace(step.code_point)) {
      break;
    }
    text.remove_prefix(step.num_bytes);
  }
  return text;
}

// --- DeepSeek-V3.1 with tools
// -------------------------------------------------

constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kOutputBegin = "<｜tool▁output▁begin｜>";
constexpr std::string_view kOutputEnd = "<｜tool▁output▁end｜>";
constexpr std::string_view kSeparator = "<｜tool▁sep｜>";
constexpr std::string_view kDeepSeekTokens[] = {
    kUser,      kAssistant, kThink,       kCallsBegin, kCallsEnd,
    kCallBegin, kCallEnd,   kOutputBegin, kOutputEnd,  kSeparator};

// All system messages come first, wherever they stand, then the tools.
void RenderDeepSeekSystem(const ChatInput& input, ChatRuns* runs) {
  bool is_empty = true;
  const auto paragraph = [&](std::string_view text) {
    if (!is_empty) runs->Text("\n\n");
    runs->Text(text);
    is_empty = is_empty && text.empty();
  };
  for (const ChatMessage& message : input.messages) {
    if (message.role == "system") paragraph(message.content);
  }
  if (input.options.tools.empty()) return;
  paragraph("## Tools\nYou have access to the following tools:\n");
  for (size_t i = 0; i < input.options.tools.size(); ++i) {
    const ChatTool& tool = input.options.tools[i];
    runs->Text("\n### ");
    runs->Text(tool.name);
    runs->Text("\nDescription: ");
    runs->Text(tool.description);
    runs->Text("\n\nParameters: ");
    runs->Text(input.tool_parameters[i]);
    runs->Text("\n");
  }
  runs->Text("\nIMPORTANT: ALWAYS adhere to this exact format for tool use:\n");
  runs->Special(kCallsBegin);
  runs->Special(kCallBegin);
  runs->Text("tool_call_name");
  runs->Special(kSeparator);
  runs->Text("tool_call_arguments");
  runs->Special(kCallEnd);
  runs->Special(kCallsEnd);
  runs->Text("\n");
}

// What an earlier turn thought is left out.
std::string_view WithoutThoughts(std::string_view content) {
  constexpr std::string_view kThinkEnd = "</think>";
  const size_t end = content.rfind(kThinkEnd);
  if (end == std::string_view::npos) return content;
  return StripLeft(content.substr(end + kThinkEnd.size()));
}

void RenderDeepSeekAssistant(const ChatInput& input, const ChatMessage& message,
                             ChatRuns* runs) {
  runs->Text(WithoutThoughts(message.content));
  if (!message.tool_calls.empty()) {
    runs->Special(kCallsBegin);
    for (const ChatToolCall& call : message.tool_calls) {
      runs->Special(kCallBegin);
      runs->Text(call.name);
      runs->Special(kSeparator);
      runs->Text(call.arguments);
      runs->Special(kCallEnd);
    }
    runs->Special(kCallsEnd);
  }
  runs->Special(input.eos_token);
}

void RenderDeepSeek(const ChatInput& input, ChatRuns* runs) {
  runs->Special(input.bos_token);
  RenderDeepSeekSystem(input, runs);
  // After a tool's output the assistant goes on without a new opening.
  bool after_tool = false;
  for (const ChatMessage& message : input.messages) {
    if (message.role == "user") {
      runs->Special(kUser);
      runs->Text(message.content);
      after_tool = false;
    } else if (message.role == "assistant") {
      if (!after_tool) runs->Special(kAssistant);
      RenderDeepSeekAssistant(input, message, runs);
      after_tool = false;
    } else if (message.role == "tool") {
      runs->Special(kOutputBegin);
      runs->Text(message.content);
      runs->Special(kOutputEnd);
      after_tool = true;
    }
  }
  if (!input.options.add_generation_prompt || after_tool) return;
  runs->Special(kAssistant);
  if (!input.options.thinking) return;
  runs->Special(kThink);
  runs->Text("\n");
}

// --- the table
// ----------------------------------------------------------------

constexpr ChatRenderer kRenderers[] = {
    // tiny-deepseek-v3.
    {"65050f51a7b3fd6e086bb37cc278bed0", RenderDeepSeek, kDeepSeekTokens},
};

}  // namespace

const ChatRenderer* FindChatRenderer(std::string_view template_hash) {
  for (const ChatRenderer& renderer : kRenderers) {
    if (renderer.template_hash == template_hash) return &renderer;
  }
  return nullptr;
}

}  // namespace baton
