#include "server/cli/generation_stream.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/str_format.h"
#include "base/clock.h"

namespace baton {
namespace {

double Milliseconds(absl::Duration duration) {
  return absl::ToDoubleMilliseconds(duration);
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
