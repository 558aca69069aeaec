#include "server/cli/generation_stream.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/clock.h"

namespace baton {
namespace {

double Milliseconds(absl::Duration duration) {
  return absl::ToDoubleMilliseconds(duration);
}

void AddPrompt(const v1::PromptLogprobs& from, v1::PromptLogprobs* to) {
  if (to->token_ids_size() == 0) {
    to->set_first_token_index(from.first_token_index());
  }
  to->mutable_token_ids()->MergeFrom(from.token_ids());
  to->mutable_logprobs()->MergeFrom(from.logprobs());
  to->mutable_top_logprobs()->MergeFrom(from.top_logprobs());
}

// [[{"id": 5, "logprob": -0.1}, ...], ...]
template <typename Tops>
nlohmann::json TopJson(const Tops& tops) {
  nlohmann::json lists = nlohmann::json::array();
  for (const v1::TopLogprobs& top : tops) {
    nlohmann::json list = nlohmann::json::array();
    for (int i = 0; i < top.token_ids_size(); ++i) {
      list.push_back({{"id", top.token_ids(i)}, {"logprob", top.logprobs(i)}});
    }
    lists.push_back(std::move(list));
  }
  return lists;
}

nlohmann::json PromptJson(const v1::PromptLogprobs& prompt) {
  nlohmann::json json = {{"first_token_index", prompt.first_token_index()},
                         {"token_ids", prompt.token_ids()},
                         {"logprobs", prompt.logprobs()}};
  if (prompt.top_logprobs_size() > 0) {
    json["top_logprobs"] = TopJson(prompt.top_logprobs());
  }
  return json;
}

// Between the first token and the end.
double DecodeTokensPerSecond(const TokenTiming& timing) {
  return timing.tpot > absl::ZeroDuration()
             ? 1 / absl::ToDoubleSeconds(timing.tpot)
             : 0;
}

}  // namespace

std::unique_ptr<v1::InferenceService::Stub> ConnectToRouter(
    const std::string& router) {
  return v1::InferenceService::NewStub(
      grpc::CreateChannel(router, grpc::InsecureChannelCredentials()));
}

grpc::Status StreamGeneration(
    v1::InferenceService::StubInterface& stub,
    const v1::GenerateRequest& request, absl::Duration timeout,
    const std::function<void(std::string_view)>& on_text,
    Generation* generation) {
  const MonotonicClock clock;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoNanoseconds(timeout));
  std::vector<TokenArrival> arrivals;
  const absl::Time sent = clock.Now();
  const auto reader = stub.Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_finished()) {
      generation->finished = response.finished();
      continue;
    }
    if (response.has_prompt_logprobs()) {
      AddPrompt(response.prompt_logprobs(), &generation->prompt_logprobs);
      continue;
    }
    const v1::GenerateChunk& chunk = response.chunk();
    arrivals.push_back(
        {clock.Now(), static_cast<size_t>(chunk.token_ids_size())});
    generation->text += chunk.text();
    generation->token_ids.insert(generation->token_ids.end(),
                                 chunk.token_ids().begin(),
                                 chunk.token_ids().end());
    generation->logprobs.insert(generation->logprobs.end(),
                                chunk.logprobs().begin(),
                                chunk.logprobs().end());
    generation->top_logprobs.insert(generation->top_logprobs.end(),
                                    chunk.top_logprobs().begin(),
                                    chunk.top_logprobs().end());
    on_text(chunk.text());
  }
  const absl::Time ended =
      arrivals.empty() ? clock.Now() : arrivals.back().time;
  generation->timing = MeasureTokens(sent, ended, arrivals);
  return reader->Finish();
}

std::string FinishReasonName(v1::FinishReason reason) {
  const std::string name = v1::FinishReason_Name(reason);
  return name.substr(name.rfind("REASON_") + 7);
}

std::string SummaryText(const Generation& generation) {
  const TokenTiming& timing = generation.timing;
  const v1::GenerateFinished& finished = generation.finished;
  return absl::StrFormat(
      "finish %s  prompt %d tokens (%d cached)  output %d tokens  seed %d\n"
      "ttft %.1f ms  tpot %.2f ms  %.0f tokens/s after the first  total %.1f "
      "ms  kv moved %d bytes in %.2f ms\n",
      FinishReasonName(finished.finish_reason()),
      finished.usage().prompt_tokens(), finished.usage().cached_tokens(),
      finished.usage().completion_tokens(), finished.seed(),
      Milliseconds(timing.ttft), Milliseconds(timing.tpot),
      DecodeTokensPerSecond(timing), Milliseconds(timing.e2e),
      finished.timing().kv_transfer_bytes(),
      finished.timing().kv_transfer_seconds() * 1e3);
}

nlohmann::json SummaryJson(const Generation& generation) {
  const v1::GenerateFinished& finished = generation.finished;
  nlohmann::json json = {
      {"text", generation.text},
      {"token_ids", generation.token_ids},
      {"logprobs", generation.logprobs},
      {"finish_reason", FinishReasonName(finished.finish_reason())},
      {"seed", finished.seed()},
      {"fingerprint", finished.fingerprint()},
      {"usage",
       {{"prompt_tokens", finished.usage().prompt_tokens()},
        {"cached_tokens", finished.usage().cached_tokens()},
        {"completion_tokens", finished.usage().completion_tokens()}}},
      {"client",
       {{"ttft_seconds", absl::ToDoubleSeconds(generation.timing.ttft)},
        {"tpot_seconds", absl::ToDoubleSeconds(generation.timing.tpot)},
        {"total_seconds", absl::ToDoubleSeconds(generation.timing.e2e)},
        {"decode_tokens_per_second",
         DecodeTokensPerSecond(generation.timing)}}},
      {"kv_transfer_bytes", finished.timing().kv_transfer_bytes()}};
  if (!generation.top_logprobs.empty()) {
    json["top_logprobs"] = TopJson(generation.top_logprobs);
  }
  if (generation.prompt_logprobs.token_ids_size() > 0) {
    json["prompt"] = PromptJson(generation.prompt_logprobs);
  }
  nlohmann::json& server = json["server"];
  const v1::Timing& timing = finished.timing();
  server["queue_seconds"] = timing.queue_seconds();
  server["prefill_seconds"] = timing.prefill_seconds();
  server["kv_transfer_seconds"] = timing.kv_transfer_seconds();
  server["ttft_seconds"] = timing.ttft_seconds();
  server["total_seconds"] = timing.total_seconds();
  return json;
}

}  // namespace baton
