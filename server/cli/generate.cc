#include "server/cli/generate.h"

#include <grpcpp/grpcpp.h>

#include <iterator>

#include "base/field_error.h"
#include "base/status_macros.h"
#include "server/cli/generation_stream.h"
#include "server/cli/rpc_error.h"

namespace baton {
namespace {

absl::Status FillPrompt(const GenerateOptions& options, std::istream& in,
                        v1::Prompt* prompt) {
  if (options.token_ids) {
    ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                     ParseTokenIds(*options.token_ids));
    *prompt->mutable_token_ids()->mutable_ids() = {ids.begin(), ids.end()};
    return absl::OkStatus();
  }
  v1::TextPrompt& text = *prompt->mutable_text();
  text.set_text(options.prompt ? *options.prompt
                               : std::string(std::istreambuf_iterator(in), {}));
  if (options.parse_special) text.set_parse_special(true);
  return absl::OkStatus();
}

}  // namespace

void AddGenerateFlags(Flags& flags, GenerateOptions* options) {
  flags.Group("Prompt (absent: the standard input)");
  flags.Add(&options->prompt, {.name = "prompt", .help = "Its text."});
  flags.Add(&options->token_ids,
            {.name = "token_ids", .help = "Its token ids: 0,17,42."});
  flags.Add(&options->parse_special,
            {.name = "parse_special",
             .help = "Special tokens written out in the text become those."});
  AddRequestFlags(flags, &options->request);
  flags.Add(&options->json,
            {.name = "json",
             .help = "One JSON object at the end instead of the text."});
}

absl::Status ValidateGenerate(const GenerateOptions& options) {
  if (options.prompt && options.token_ids) {
    return FieldError("token_ids", "contradicts --prompt: give one of them");
  }
  return absl::OkStatus();
}

int RunGenerate(const GenerateOptions& options, const Console& console) {
  v1::GenerateRequest request;
  absl::Status filled =
      FillPrompt(options, console.in, request.mutable_prompt());
  if (filled.ok()) filled = FillRequest(options.request, &request);
  if (!filled.ok()) {
    console.err << "baton generate: " << std::string(filled.message()) << "\n";
    return kExitUsage;
  }
  const auto stub = ConnectToRouter(options.request.router);
  Generation generation;
  const grpc::Status status = StreamGeneration(
      *stub, request, options.request.timeout,
      [&](std::string_view text) {
        if (!options.json) console.out << text << std::flush;
      },
      &generation);
  if (!options.json) console.out << std::endl;
  if (!status.ok()) {
    console.err << "baton generate: "
                << ExplainRpcError(status, options.request.router) << "\n";
    return kExitFailed;
  }
  if (options.json) {
    console.out << SummaryJson(generation).dump() << std::endl;
  } else {
    console.err << SummaryText(generation);
  }
  return kExitOk;
}

}  // namespace baton
