#include "server/cli/chat.h"

#include <grpcpp/grpcpp.h>

#include "base/status_macros.h"
#include "server/cli/generation_stream.h"
#include "server/cli/rpc_error.h"

namespace baton {
namespace {

void AddMessage(const std::string& role, const std::string& content,
                v1::ChatPrompt* chat) {
  v1::ChatMessage& message = *chat->add_messages();
  message.set_role(role);
  message.set_content(content);
}

// Says `text` and prints the answer; both join the history if it went well.
int TakeTurn(const ChatOptions& options, const std::string& text,
             const Console& console, v1::InferenceService::Stub& stub,
             v1::GenerateRequest* request) {
  v1::ChatPrompt& chat = *request->mutable_prompt()->mutable_chat();
  AddMessage("user", text, &chat);
  Generation generation;
  const grpc::Status status =
      StreamGeneration(stub, *request, options.request.timeout,
                       {.on_text =
                            [&](uint32_t, std::string_view piece) {
                              console.out << piece << std::flush;
                            }},
                       &generation);
  console.out << std::endl;
  if (!status.ok()) {
    chat.mutable_messages()->RemoveLast();
    console.err << "baton chat: "
                << ExplainRpcError(status, options.request.router) << "\n";
    return kExitFailed;
  }
  console.err << SummaryText(generation);
  AddMessage("assistant", generation.samples.front().text, &chat);
  return kExitOk;
}

}  // namespace

void AddChatFlags(Flags& flags, ChatOptions* options) {
  flags.Group("Conversation");
  flags.Add(&options->message,
            {.name = "message",
             .help = "One message. Absent: each line of the standard input is "
                     "one, until it ends."});
  flags.Add(&options->system,
            {.name = "system", .help = "The system message."});
  flags.Add(&options->thinking,
            {.name = "thinking",
             .help = "Open a reasoning block, where the model has one."});
  AddRequestFlags(flags, &options->request);
}

absl::Status ValidateChat(const ChatOptions& options) {
  RETURN_IF_ERROR(ValidateConnection(options.request.router));
  return RefuseLogprobs(options.request,
                        "is nothing that chat prints; use baton generate "
                        "--json");
}

int RunChat(const ChatOptions& options, const Console& console) {
  v1::GenerateRequest request;
  if (const absl::Status filled = FillRequest(options.request, &request);
      !filled.ok()) {
    console.err << "baton chat: " << std::string(filled.message()) << "\n";
    return kExitUsage;
  }
  v1::ChatPrompt& chat = *request.mutable_prompt()->mutable_chat();
  if (options.thinking) chat.set_thinking(true);
  if (options.system) AddMessage("system", *options.system, &chat);
  const auto stub = ConnectToRouter(options.request.router);
  if (options.message) {
    return TakeTurn(options, *options.message, console, *stub, &request);
  }
  int exit_code = kExitOk;
  std::string line;
  while (console.err << "> " << std::flush, std::getline(console.in, line)) {
    if (line.empty()) continue;
    exit_code = TakeTurn(options, line, console, *stub, &request);
  }
  return exit_code;
}

}  // namespace baton
