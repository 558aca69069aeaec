// A chat as values: what goes into a template and what comes out.
#ifndef BATON_SERVER_TEXT_CHAT_MESSAGES_H_
#define BATON_SERVER_TEXT_CHAT_MESSAGES_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton {

struct ChatToolCall {
  std::string name = {};
  std::string arguments = {};  // As the model wrote them: JSON, taken as it is.
};

struct ChatMessage {
  std::string role = {};  // "system", "user", "assistant" or "tool".
  std::string content = {};
  std::vector<ChatToolCall> tool_calls = {};  // Of an assistant's message.
};

struct ChatTool {
  std::string name = {};
  std::string description = {};
  std::string parameters = {};  // A JSON schema.
};

struct ChatOptions {
  // End with the assistant's opening, so that the model answers.
  bool add_generation_prompt = true;
  // Open a reasoning block where the template has one.
  bool thinking = false;
  std::vector<ChatTool> tools = {};
};

// A run of rendered chat: a special token's content, or text that is encoded as
// text whatever it holds. Two texts never follow each other, so that what
// stands between two special tokens is segmented as one.
struct ChatRun {
  bool special = false;
  std::string text;

  friend bool operator==(const ChatRun&, const ChatRun&) = default;
};

// Builds such runs. Thread-compatible.
class ChatRuns final {
 public:
  void Text(std::string_view text) {
    if (text.empty()) return;
    if (runs_.empty() || runs_.back().special) runs_.emplace_back();
    runs_.back().text.append(text);
  }

  void Special(std::string_view token) {
    runs_.push_back({.special = true, .text = std::string(token)});
  }

  std::vector<ChatRun> Take() { return std::move(runs_); }

 private:
  std::vector<ChatRun> runs_;
};

}  // namespace baton

#endif  // BATON_SERVER_TEXT_CHAT_MESSAGES_H_
