#include "server/cli/generation_stream.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <map>
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

// Between the first token and the end, of all samples.
double DecodeTokensPerSecond(const TokenTiming& timing) {
  const absl::Duration time = timing.e2e - timing.ttft;
  return timing.num_tokens > 1 && time > absl::ZeroDuration()
             ? (timing.num_tokens - 1) / absl::ToDoubleSeconds(time)
             : 0;
}

template <typename From, typename To>
void Append(const From& from, To* to) {
  to->insert(to->end(), from.begin(), from.end());
}

void AddChunk(const v1::GenerateChunk& chunk, GeneratedSample* sample) {
  sample->text += chunk.text();
  Append(chunk.token_ids(), &sample->token_ids);
  Append(chunk.logprobs(), &sample->logprobs);
  Append(chunk.top_logprobs(), &sample->top_logprobs);
}

grpc::Status Strange(const std::string& what) {
  return {grpc::StatusCode::INTERNAL, "the router " + what};
}

// "EOS", or of several samples "2 EOS, 1 LENGTH".
std::string ReasonsText(const std::vector<GeneratedSample>& samples) {
  std::map<v1::FinishReason, int> counts;
  for (const GeneratedSample& sample : samples) {
    ++counts[sample.finished.finish_reason()];
  }
  std::string text;
  for (const auto& [reason, count] : counts) {
    if (!text.empty()) text += ", ";
    if (samples.size() > 1) text += std::to_string(count) + " ";
    text += FinishReasonName(reason);
  }
  return text;
}

bool IsWhole(const Generation& generation) {
  return std::all_of(generation.samples.begin(), generation.samples.end(),
                     [](const GeneratedSample& sample) {
                       return sample.finished.finish_reason() !=
                              v1::FINISH_REASON_UNSPECIFIED;
                     });
}

}  // namespace

std::unique_ptr<v1::InferenceService::Stub> ConnectToRouter(
    const std::string& router) {
  return v1::InferenceService::NewStub(
      grpc::CreateChannel(router, grpc::InsecureChannelCredentials()));
}

grpc::Status StreamGeneration(v1::InferenceService::StubInterface& stub,
                              const v1::GenerateRequest& request,
                              absl::Duration timeout,
                              const GenerationListener& listener,
                              Generation* generation) {
  const MonotonicClock clock;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoNanoseconds(timeout));
  generation->samples.resize(std::max(request.sampling().n(), 1u));
  std::vector<TokenArrival> arrivals;
  const absl::Time sent = clock.Now();
  const auto reader = stub.Generate(&context, request);
  v1::GenerateResponse response;
  bool is_strange = false;
  while (reader->Read(&response)) {
    if (response.has_prompt_logprobs()) {
      AddPrompt(response.prompt_logprobs(), &generation->prompt_logprobs);
      continue;
    }
    const v1::GenerateChunk& chunk = response.chunk();
    const uint32_t index = response.has_finished()
                               ? response.finished().sample_index()
                               : chunk.sample_index();
    if (index >= generation->samples.size()) {
      is_strange = true;
      context.TryCancel();
      continue;
    }
    GeneratedSample& sample = generation->samples[index];
    if (response.has_finished()) {
      sample.finished = response.finished();
      listener.on_finished(index, sample);
      continue;
    }
    arrivals.push_back(
        {clock.Now(), static_cast<size_t>(chunk.token_ids_size()), index});
    AddChunk(chunk, &sample);
    listener.on_text(index, chunk.text());
  }
  const absl::Time ended =
      arrivals.empty() ? clock.Now() : arrivals.back().time;
  generation->timing = MeasureTokens(sent, ended, arrivals);
  grpc::Status status = reader->Finish();
  if (is_strange) return Strange("sent a sample that was not asked for");
  if (!status.ok() || IsWhole(*generation)) return status;
  return Strange("did not finish every sample");
}

std::string FinishReasonName(v1::FinishReason reason) {
  const std::string name = v1::FinishReason_Name(reason);
  return name.substr(name.rfind("REASON_") + 7);
}

std::string SummaryText(const Generation& generation) {
  const TokenTiming& timing = generation.timing;
  uint32_t output_tokens = 0;
  uint64_t moved_bytes = 0;
  double moved_seconds = 0;
  for (const GeneratedSample& sample : generation.samples) {
    const v1::GenerateFinished& finished = sample.finished;
    output_tokens += finished.usage().completion_tokens();
    // Those that ended before it was known have 0.
    moved_bytes =
        std::max<uint64_t>(moved_bytes, finished.timing().kv_transfer_bytes());
    moved_seconds =
        std::max(moved_seconds, finished.timing().kv_transfer_seconds());
  }
  const v1::GenerateFinished& first = generation.samples.front().finished;
  return absl::StrFormat(
      "finish %s  prompt %d tokens (%d cached, %d at decode)  output %d tokens "
      " seed %d\n"
      "ttft %.1f ms  tpot %.2f ms  %.0f tokens/s after the first  total %.1f "
      "ms  kv moved %d bytes in %.2f ms\n",
      ReasonsText(generation.samples), first.usage().prompt_tokens(),
      first.usage().cached_tokens(), first.usage().decode_cached_tokens(),
      output_tokens, first.seed(), Milliseconds(timing.ttft),
      Milliseconds(timing.tpot), DecodeTokensPerSecond(timing),
      Milliseconds(timing.e2e), moved_bytes, moved_seconds * 1e3);
}

nlohmann::json SummaryJson(const Generation& generation,
                           uint32_t sample_index) {
  const GeneratedSample& sample = generation.samples[sample_index];
  const v1::GenerateFinished& finished = sample.finished;
  nlohmann::json json = {
      {"sample_index", sample_index},
      {"text", sample.text},
      {"token_ids", sample.token_ids},
      {"logprobs", sample.logprobs},
      {"finish_reason", FinishReasonName(finished.finish_reason())},
      {"seed", finished.seed()},
      {"fingerprint", finished.fingerprint()},
      {"usage",
       {{"prompt_tokens", finished.usage().prompt_tokens()},
        {"cached_tokens", finished.usage().cached_tokens()},
        {"decode_cached_tokens", finished.usage().decode_cached_tokens()},
        {"completion_tokens", finished.usage().completion_tokens()}}},
      {"client",
       {{"ttft_seconds", absl::ToDoubleSeconds(generation.timing.ttft)},
        {"tpot_seconds", absl::ToDoubleSeconds(generation.timing.tpot)},
        {"total_seconds", absl::ToDoubleSeconds(generation.timing.e2e)},
        {"decode_tokens_per_second",
         DecodeTokensPerSecond(generation.timing)}}},
      {"kv_transfer_bytes", finished.timing().kv_transfer_bytes()}};
  if (!sample.top_logprobs.empty()) {
    json["top_logprobs"] = TopJson(sample.top_logprobs);
  }
  if (sample_index == 0 && generation.prompt_logprobs.token_ids_size() > 0) {
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
