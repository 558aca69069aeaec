#include "server/text/chat_template.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "base/field_error.h"
#include "base/json_text.h"
#include "base/status_macros.h"
#include "server/text/content_hash.h"
#include "server/text/json_file.h"
#include "server/text/python_json.h"
#include "server/text/tokenizer_file.h"

namespace baton {
namespace {

// Parsing keeps the order of keys, which takes time quadratic in their number.
constexpr size_t kMaxToolParametersBytes = 64 << 10;

constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool"};

std::string Element(std::string_view list, size_t index,
                    std::string_view member) {
  std::string field = "prompt.chat.";
  field.append(list).append("[").append(std::to_string(index)).append("].");
  return field.append(member);
}

absl::Status CheckMessages(std::span<const ChatMessage> messages) {
  if (messages.empty()) {
    return FieldError("prompt.chat.messages", "is empty");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (std::find(std::begin(kRoles), std::end(kRoles), message.role) ==
        std::end(kRoles)) {
      return FieldError(Element("messages", i, "role"),
                        "is not system, user, assistant or tool");
    }
    if (!message.tool_calls.empty() && message.role != "assistant") {
      return FieldError(Element("messages", i, "tool_calls"),
                        "belongs to an assistant's message");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> PrintParameters(
    const std::vector<ChatTool>& tools) {
  std::vector<std::string> printed;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string field = Element("tools", i, "parameters");
    if (tools[i].parameters.size() > kMaxToolParametersBytes) {
      return FieldError(field, "is longer than " +
                                   std::to_string(kMaxToolParametersBytes) +
                                   " bytes");
    }
    const auto json = ParseOrderedJson(tools[i].parameters, "JSON");
    if (!json.ok()) {
      return FieldError(field, std::string(json.status().message()));
    }
    printed.push_back(PythonJson(*json));
  }
  return printed;
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Load(const std::string& model_folder,
                                                const Tokenizer* tokenizer) {
  ASSIGN_OR_RETURN(const JsonFile file,
                   JsonFile::Read(model_folder + "/tokenizer_config.json"));
  const JsonObject config = file.root();
  ChatTemplate chat;
  chat.tokenizer_ = tokenizer;
  const Json* program = config.Find("chat_template");
  // A list of named templates is as good as an unknown one.
  if (program == nullptr) return chat;
  ContentHash hash;
  hash.Add(program->is_string() ? program->get<std::string>()
                                : program->dump());
  chat.template_hash_ = hash.Hex();
  chat.renderer_ = FindChatRenderer(chat.template_hash_);
  if (chat.renderer_ == nullptr) return chat;

  for (const auto& [key, token] : {std::pair("bos_token", &chat.bos_token_),
                                   std::pair("eos_token", &chat.eos_token_)}) {
    ASSIGN_OR_RETURN(std::optional<std::string> content,
                     ReadTokenContent(config, key));
    if (!content.has_value() || !tokenizer->TokenId(*content).ok()) {
      return config.Error(key, "is no added token of tokenizer.json");
    }
    *token = *std::move(content);
  }
  for (const std::string_view token : chat.renderer_->special_tokens) {
    const absl::Status status = tokenizer->TokenId(token).status();
    if (!status.ok()) {
      return config.Error("chat_template", std::string(status.message()));
    }
  }
  return chat;
}

absl::StatusOr<std::vector<uint32_t>> ChatTemplate::Encode(
    std::span<const ChatMessage> messages, const ChatOptions& options) const {
  ASSIGN_OR_RETURN(const std::vector<ChatRun> runs, Render(messages, options));
  std::vector<uint32_t> ids;
  for (const ChatRun& run : runs) {
    if (run.special) {
      ASSIGN_OR_RETURN(const uint32_t id, tokenizer_->TokenId(run.text));
      ids.push_back(id);
      continue;
    }
    ASSIGN_OR_RETURN(const std::vector<uint32_t> text_ids,
                     tokenizer_->Encode(run.text, /*parse_special=*/false));
    ids.insert(ids.end(), text_ids.begin(), text_ids.end());
  }
  return ids;
}

absl::StatusOr<std::vector<ChatRun>> ChatTemplate::Render(
    std::span<const ChatMessage> messages, const ChatOptions& options) const {
  if (renderer_ == nullptr) {
    return absl::FailedPreconditionError(
        template_hash_.empty()
            ? "the model has no chat template; send text or token ids"
            : "the model's chat template (hash " + template_hash_ +
                  ") is not known to this server; send text or token ids, with "
                  "the template applied");
  }
  RETURN_IF_ERROR(CheckMessages(messages));
  ASSIGN_OR_RETURN(std::vector<std::string> tool_parameters,
                   PrintParameters(options.tools));
  ChatRuns runs;
  renderer_->render({.messages = messages,
                     .options = options,
                     .tool_parameters = std::move(tool_parameters),
                     .bos_token = bos_token_,
                     .eos_token = eos_token_},
                    &runs);
  return runs.Take();
}

}  // namespace baton
