#include "server/router/inference_service.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "server/edge/grpc_status.h"
#include "server/edge/version.h"
#include "server/router/generation_call.h"
#include "server/router/prompt_encoder.h"
#include "server/router/validate.h"
#include "server/text/detokenizer.h"

namespace baton {
namespace {

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

size_t PromptBytes(const v1::Prompt& prompt) {
  size_t bytes = prompt.text().text().size();
  for (const v1::ChatMessage& message : prompt.chat().messages()) {
    bytes += message.content().size();
  }
  return bytes;
}

}  // namespace

InferenceService::InferenceService(Router* router, RequestGate* gate)
    : router_(*router), gate_(*gate) {}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto* const reactor = new GenerateReactor(context);
  absl::Status status = gate_.Enter();
  if (status.ok()) {
    status = Begin(*context, *request, reactor);
    if (!status.ok()) gate_.Leave();
  }
  if (!status.ok()) {
    router_.metrics().CountRequest(status.code());
    reactor->End(std::move(status));
  }
  return reactor;
}

absl::Status InferenceService::Begin(const grpc::CallbackServerContext& context,
                                     const v1::GenerateRequest& request,
                                     GenerateReactor* reactor) {
  const absl::Time arrival = router_.clock().Now();
  ASSIGN_OR_RETURN(const ModelBounds bounds, router_.Bounds());
  RETURN_IF_ERROR(ValidateGenerateRequest(request, bounds));
  ASSIGN_OR_RETURN(std::vector<uint32_t> ids,
                   EncodePrompt(request.prompt(), router_.text()));
  ASSIGN_OR_RETURN(GenerationPlan plan,
                   MakePlan(request, std::move(ids), bounds));
  if (!plan.sampling.seed.has_value()) {
    plan.sampling.seed = Router::DrawRandom();
  }
  // Shared with whoever may still bring it an event; see generation_call.h.
  auto call = std::make_shared<GenerationCall>(
      std::move(plan), GenerationCall::Options{.router = &router_,
                                               .client = reactor,
                                               .deadline = context.deadline(),
                                               .arrival = arrival});
  reactor->Attach([call] { call->OnClientGone(); }, [this] { gate_.Leave(); });
  call->Start();
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(
    grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
    v1::TokenizeResponse* response) {
  return Answer(context, DoTokenize(*request, response));
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(
    grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
    v1::DetokenizeResponse* response) {
  return Answer(context, DoDetokenize(*request, response));
}

grpc::ServerUnaryReactor* InferenceService::GetModelInfo(
    grpc::CallbackServerContext* context, const v1::GetModelInfoRequest*,
    v1::GetModelInfoResponse* response) {
  return Answer(context, DoGetModelInfo(response));
}

absl::Status InferenceService::DoTokenize(const v1::TokenizeRequest& request,
                                          v1::TokenizeResponse* response) {
  const v1::Prompt& prompt = request.prompt();
  if (!prompt.has_text() && !prompt.has_chat()) {
    return FieldError("prompt", "must be text or chat");
  }
  if (PromptBytes(prompt) > kMaxTokenizeBytes) {
    return FieldError(
        "prompt", absl::StrCat("has more than ", kMaxTokenizeBytes, " bytes"));
  }
  ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                   EncodePrompt(prompt, router_.text()));
  response->mutable_token_ids()->Add(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status InferenceService::DoDetokenize(
    const v1::DetokenizeRequest& request, v1::DetokenizeResponse* response) {
  if (request.token_ids_size() > kMaxDetokenizeIds) {
    return FieldError(
        "token_ids", absl::StrCat("has more than ", kMaxDetokenizeIds, " ids"));
  }
  const TextModel& text = router_.text();
  for (int i = 0; i < request.token_ids_size(); ++i) {
    if (request.token_ids(i) < text.vocab_size) continue;
    return FieldError(
        absl::StrCat("token_ids[", i, "]"),
        absl::StrCat(request.token_ids(i), " is not in the vocabulary of ",
                     text.vocab_size));
  }
  const bool skip_special_tokens =
      !request.has_skip_special_tokens() || request.skip_special_tokens();
  response->set_text(
      Decode(*text.tokenizer,
             std::span(request.token_ids().data(),
                       static_cast<size_t>(request.token_ids_size())),
             skip_special_tokens));
  return absl::OkStatus();
}

absl::Status InferenceService::DoGetModelInfo(
    v1::GetModelInfoResponse* response) {
  ASSIGN_OR_RETURN(const ServedModel served, router_.pool().Served());
  const TextModel& text = router_.text();
  response->set_model_name(router_.options().model_name);
  response->set_vocab_size(text.vocab_size);
  response->set_max_context_tokens(served.max_context_tokens);
  response->mutable_eos_token_ids()->Add(
      text.generation_config.eos_token_ids.begin(),
      text.generation_config.eos_token_ids.end());
  response->set_text_hash(text.text_hash);
  response->set_fingerprint(served.fingerprint);
  response->set_chat_supported(text.chat_template.supported());
  response->set_version(kBatonVersion);
  return absl::OkStatus();
}

}  // namespace baton
