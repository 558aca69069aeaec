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

// One text as it comes; of several samples each when it is whole.
GenerationListener Printer(bool is_one, std::ostream& out) {
  if (is_one) {
    return {.on_text = [&out](uint32_t, std::string_view piece) {
      out << piece << std::flush;
    }};
  }
  return {.on_finished = [&out](uint32_t index, const GeneratedSample& sample) {
    out << "--- sample " << index << "\n" << sample.text << std::endl;
  }};
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
  AddSamplesFlag(flags, &options->request.n);
  flags.Add(&options->json,
            {.name = "json",
             .help = "One JSON object at the end instead of the text; of "
                     "several samples one each, a line each."});
}

absl::Status ValidateGenerate(const GenerateOptions& options) {
  if (options.prompt && options.token_ids) {
    return FieldError("token_ids", "contradicts --prompt: give one of them");
  }
  RETURN_IF_ERROR(ValidateConnection(options.request.router));
  if (options.json) return absl::OkStatus();
  return RefuseLogprobs(options.request, "needs --json, which prints it");
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
  const bool is_one = request.sampling().n() <= 1;
  const grpc::Status status = StreamGeneration(
      *stub, request, options.request.timeout,
      options.json ? GenerationListener() : Printer(is_one, console.out),
      &generation);
  if (!options.json && is_one) console.out << std::endl;
  if (!status.ok()) {
    console.err << "baton generate: "
                << ExplainRpcError(status, options.request.router) << "\n";
    return kExitFailed;
  }
  if (options.json) {
    for (uint32_t i = 0; i < generation.samples.size(); ++i) {
      console.out << SummaryJson(generation, i).dump() << std::endl;
    }
  } else {
    console.err << SummaryText(generation);
  }
  return kExitOk;
}

}  // namespace baton
