// What a call leaves in the log and in the metrics.
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/edge/metrics.h"
#include "server/router/generation_call.h"

namespace baton {

void GenerationCall::ObserveTokens(const v1::GenerateChunk& chunk) {
  if (chunk.token_ids_size() == 0) return;
  const absl::Time now = router_.clock().Now();
  if (!std::exchange(has_token_, true)) {
    router_.metrics().time_to_first_token.Observe(
        absl::ToDoubleSeconds(now - arrival_));
  }
  absl::Time& last = last_tokens_[chunk.sample_index()];
  int num_intervals = chunk.token_ids_size();
  if (last == absl::InfinitePast()) {
    last = now;
    --num_intervals;
  }
  if (num_intervals == 0) return;
  const double each = absl::ToDoubleSeconds(now - last) / num_intervals;
  for (int i = 0; i < num_intervals; ++i) inter_token_latency_.Observe(each);
  last = now;
}

void GenerationCall::ObserveTimes(const v1::GenerateFinished& summary) {
  ServiceTimes& times = router_.service_times();
  const absl::Time now = router_.clock().Now();
  // Else it has had no place for a while.
  if (!was_paused_) times.OnServed(now - turn_, now);
  if (!summary.timing().has_prefill_seconds()) return;
  times.OnPrefilled(num_prompt_tokens_,
                    absl::Seconds(summary.timing().prefill_seconds()), now);
}

void GenerationCall::LogAndCount(const v1::GenerateFinished& summary,
                                 const absl::Status& status) {
  RouterMetrics& metrics = router_.metrics();
  const v1::Usage& usage = summary.usage();
  const v1::Timing& timing = summary.timing();
  metrics.CountRequest(status.code());
  metrics.prompt_tokens.Increment(usage.prompt_tokens());
  metrics.cached_tokens.Increment(usage.cached_tokens());
  metrics.generated_tokens.Increment(usage.completion_tokens());
  if (timing.has_queue_seconds()) {
    metrics.queue_time.Observe(timing.queue_seconds());
  }
  inter_token_latency_.FlushTo(&metrics.inter_token_latency);
  LOG(INFO) << "request " << Name() << " outcome " << OutcomeName(status.code())
            << " reason " << ReasonForLog(status) << " samples " << num_samples_
            << " prompt " << usage.prompt_tokens() << " cached "
            << usage.cached_tokens() << " output " << usage.completion_tokens()
            << " queue " << timing.queue_seconds() << " prefill "
            << timing.prefill_seconds() << " transfer "
            << timing.kv_transfer_seconds() << " transfer_bytes "
            << timing.kv_transfer_bytes() << " ttft " << timing.ttft_seconds()
            << " total " << timing.total_seconds() << AttemptsForLog();
}

std::string GenerationCall::ReasonForLog(const absl::Status& status) const {
  if (!status.ok()) return std::string(status.message());
  std::string text;
  for (const v1::FinishReason reason : reasons_) {
    absl::StrAppend(&text, text.empty() ? "" : ",",
                    v1::FinishReason_Name(reason));
  }
  return text;
}

std::string GenerationCall::Name() const {
  std::string name =
      absl::StrCat(absl::Hex(router_.nonce()), "-", ticket_.value());
  if (!client_request_id_.empty()) {
    // Of the client's making: nothing in it may look like a line of ours.
    absl::StrAppend(&name, " client_id \"",
                    absl::CHexEscape(client_request_id_), "\"");
  }
  return name;
}

// And where the newest one that has workers went.
std::string GenerationCall::AttemptsForLog() const {
  std::string text = absl::StrCat(" attempts ", calls_.size());
  for (auto calls = calls_.rbegin(); calls != calls_.rend(); ++calls) {
    const auto& prefill = (*calls)->prefill_worker;
    const auto& decode = (*calls)->decode_worker;
    if (!decode.has_value()) continue;
    absl::StrAppend(&text, " prefill ",
                    prefill.has_value() ? prefill->client().address() : "-",
                    " decode ", decode->client().address());
    break;
  }
  return text;
}

}  // namespace baton
