#include "server/router/inference_service.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "server/edge/grpc_status.h"
#include "server/edge/metrics.h"
#include "server/edge/version.h"
#include "server/router/prompt_encoder.h"
#include "server/router/router_metrics.h"
#include "server/text/detokenizer.h"

namespace baton {

InferenceService::InferenceService(Router* router, RequestGate* gate)
    : router_(*router), gate_(*gate) {}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const absl::Time arrival = router_.clock().Now();
  if (absl::Status status =
          gate_.EnterWith({.message_bytes = request->ByteSizeLong(),
                           .num_samples = request->sampling().n()});
      !status.ok()) {
    auto* const refused =
        new GenerateReactor(context, nullptr, &router_.streams());
    Refuse(std::move(status), refused);
    return refused;
  }
  auto* const reactor =
      new GenerateReactor(context, &gate_, &router_.streams());
  absl::StatusOr<ModelBounds> bounds = router_.Bounds();
  absl::Status status = bounds.ok() ? ValidateGenerateRequest(*request, *bounds)
                                    : bounds.status();
  if (status.ok()) {
    // gRPC keeps the request until the reactor is done, which needs our End.
    status = text_executor_.Run(
        PromptBytes(request->prompt()),
        [this, request, bounds = *std::move(bounds),
         options = GenerationCall::Options{.router = &router_,
                                           .client = reactor,
                                           .deadline = context->deadline(),
                                           .arrival = arrival}] {
          Begin(*request, bounds, options);
        });
  }
  if (!status.ok()) Refuse(std::move(status), reactor);
  return reactor;
}

void InferenceService::Begin(const v1::GenerateRequest& request,
                             const ModelBounds& bounds,
                             GenerationCall::Options options) {
  // It may have waited for the text's thread. Nobody wants these tokens.
  if (const auto why = options.client->early_end(); why.has_value()) {
    Refuse(GenerationCall::StatusOf(*why, options.deadline), options.client);
    return;
  }
  absl::StatusOr<GenerationPlan> plan = Plan(request, bounds);
  if (!plan.ok()) {
    Refuse(plan.status(), options.client);
    return;
  }
  GenerateReactor* const reactor = options.client;
  // Shared with whoever may still bring it an event; see generation_call.h.
  auto call = std::make_shared<GenerationCall>(*std::move(plan), options);
  reactor->Attach([call](EarlyEnd why) { call->OnEarlyEnd(why); },
                  [call](bool paused) { call->OnFlow(paused); });
  call->Start();
}

absl::StatusOr<GenerationPlan> InferenceService::Plan(
    const v1::GenerateRequest& request, const ModelBounds& bounds) const {
  ASSIGN_OR_RETURN(std::vector<uint32_t> ids,
                   EncodePrompt(request.prompt(), router_.text()));
  ASSIGN_OR_RETURN(GenerationPlan plan,
                   MakePlan(request, std::move(ids), bounds));
  if (!plan.sampling.seed.has_value()) {
    plan.sampling.seed = RandomBits();
  }
  return plan;
}

void InferenceService::Refuse(absl::Status status, GenerateReactor* reactor) {
  router_.metrics().CountRequest(status.code());
  LOG(INFO) << "request refused outcome " << OutcomeName(status.code())
            << " field " << ErrorField(status).value_or("-");
  reactor->End(std::move(status));
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(
    grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
    v1::TokenizeResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::Status status = ValidateTokenize(*request);
  if (status.ok()) {
    status = text_executor_.Run(
        PromptBytes(request->prompt()), [this, request, response, reactor] {
          reactor->Finish(ToGrpcStatus(DoTokenize(*request, response)));
        });
  }
  if (!status.ok()) reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(
    grpc::CallbackServerContext* context, const v1::DetokenizeRequest* request,
    v1::DetokenizeResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::Status status = text_executor_.Run(
      sizeof(uint32_t) * request->token_ids_size(),
      [this, request, response, reactor] {
        reactor->Finish(ToGrpcStatus(DoDetokenize(*request, response)));
      });
  if (!status.ok()) reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetModelInfo(
    grpc::CallbackServerContext* context, const v1::GetModelInfoRequest*,
    v1::GetModelInfoResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(DoGetModelInfo(response)));
  return reactor;
}

absl::Status InferenceService::ValidateTokenize(
    const v1::TokenizeRequest& request) const {
  const v1::Prompt& prompt = request.prompt();
  if (!prompt.has_text() && !prompt.has_chat()) {
    return FieldError("prompt", "must be text or chat");
  }
  ASSIGN_OR_RETURN(const ModelBounds bounds, router_.Bounds());
  RETURN_IF_ERROR(ValidatePrompt(prompt, bounds));
  if (PromptBytes(prompt) > kMaxTokenizeBytes) {
    return FieldError(
        "prompt", absl::StrCat("has more than ", kMaxTokenizeBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status InferenceService::DoTokenize(
    const v1::TokenizeRequest& request, v1::TokenizeResponse* response) const {
  ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                   EncodePrompt(request.prompt(), router_.text()));
  response->mutable_token_ids()->Add(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status InferenceService::DoDetokenize(
    const v1::DetokenizeRequest& request,
    v1::DetokenizeResponse* response) const {
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
    v1::GetModelInfoResponse* response) const {
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
