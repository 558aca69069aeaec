#include "server/worker_metrics.h"

#include "server/edge/metrics.h"
#include "server/edge/series_maker.h"

namespace baton {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;

}  // namespace

struct WorkerMetrics::Maker : SeriesMaker {
  using SeriesMaker::SeriesMaker;

  Gauge& Blocks(const char* state) const {
    return OneGauge("baton_kv_blocks", "Blocks of the KV pool by state.",
                    {{"state", state}});
  }
  Gauge& Transfers(const char* direction) const {
    return OneGauge("baton_kv_transfers",
                    "Requests whose KV moves, by direction.",
                    {{"direction", direction}});
  }
  Counter& DroppedMessages(const char* reason) const {
    return OneCounter(
        "baton_kv_transfer_dropped_messages_total",
        "Messages of KV transfers that did nothing: malformed, or "
        "ignored as late, duplicate or not for this worker.",
        {{"reason", reason}});
  }
};

namespace {

// Never down: scrapes may come out of order.
void Raise(Counter* counter, uint64_t to) {
  const double more = static_cast<double>(to) - counter->Value();
  if (more > 0) counter->Increment(more);
}

const char* ActivityName(RequestActivity activity) {
  switch (activity) {
    case RequestActivity::kQueued:
      return "queued";
    case RequestActivity::kPrefill:
      return "prefill";
    case RequestActivity::kTransfer:
      return "transfer";
    case RequestActivity::kDecode:
      return "decode";
  }
  return "unknown";
}

}  // namespace

WorkerMetrics::WorkerMetrics(Registry* registry, const std::string& role)
    : WorkerMetrics(Maker{registry, role}) {}

WorkerMetrics::WorkerMetrics(const Maker& make)
    : requests_(make.Counters("baton_requests_total",
                              "Requests that ended, by outcome.")),
      aborted_requests_(make.Counters(
          "baton_aborted_requests_total",
          "Requests cancelled or late, by what they were doing.")),
      queue_time_(
          make.OneHistogram("baton_queue_time_seconds",
                            "From submission to a place in the batch.")),
      time_to_first_token_(
          make.OneHistogram("baton_time_to_first_token_seconds",
                            "From the call's arrival to its first token.")),
      inter_token_latency_(make.OneHistogram(
          "baton_inter_token_latency_seconds",
          "Between a stream's tokens, where they are written.")),
      prompt_tokens_(make.OneCounter("baton_prompt_tokens_total",
                                     "Tokens of ended prompts.")),
      generated_tokens_(
          make.OneCounter("baton_generated_tokens_total", "Tokens streamed.")),
      cached_tokens_(
          make.OneCounter("baton_cached_tokens_total",
                          "Prompt tokens found in the prefix cache.")),
      kv_transfer_bytes_(make.OneCounter("baton_kv_transfer_bytes_total",
                                         "Bytes of KV imported.")),
      kv_transfer_time_(make.OneHistogram(
          "baton_kv_transfer_seconds", "From a KV import's start to its end.")),
      running_requests_(
          make.OneGauge("baton_running_requests", "Requests in the batch.")),
      waiting_requests_(
          make.OneGauge("baton_waiting_requests", "Requests in the queue.")),
      kv_utilization_(make.OneGauge("baton_kv_utilization_ratio",
                                    "Share of the KV pool in use, 0 to 1.")),
      free_blocks_(make.Blocks("free")),
      owned_blocks_(make.Blocks("owned")),
      exported_blocks_(make.Blocks("exported")),
      importing_blocks_(make.Blocks("importing")),
      deferred_blocks_(make.Blocks("deferred")),
      inflight_tokens_(make.OneGauge(
          "baton_inflight_tokens",
          "Tokens that launched steps draw at most, not committed.")),
      importing_requests_(make.Transfers("import")),
      exporting_requests_(make.Transfers("export")),
      damaged_blocks_(make.OneCounter(
          "baton_kv_damaged_blocks_total",
          "Blocks of KV that arrived unlike their checksum, with "
          "--kv_checksums.")),
      malformed_messages_(make.DroppedMessages("malformed")),
      ignored_messages_(make.DroppedMessages("ignored")) {}

void WorkerMetrics::OnRequestEnd(const GenerationOutcome& outcome) {
  requests_.Add({{"outcome", OutcomeName(outcome.status.code())}}).Increment();
  if (outcome.prompt_tokens == 0) return;  // Refused.
  if (absl::IsCancelled(outcome.status) ||
      absl::IsDeadlineExceeded(outcome.status)) {
    aborted_requests_.Add({{"phase", ActivityName(outcome.ended_in)}})
        .Increment();
  }
  queue_time_.Observe(absl::ToDoubleSeconds(outcome.queue_time));
  prompt_tokens_.Increment(outcome.prompt_tokens);
  cached_tokens_.Increment(outcome.cached_tokens);
  if (outcome.transfer_bytes == 0) return;
  kv_transfer_bytes_.Increment(static_cast<double>(outcome.transfer_bytes));
  kv_transfer_time_.Observe(absl::ToDoubleSeconds(outcome.transfer_time));
}

void WorkerMetrics::SetLoad(const EngineLoad& load) {
  const uint32_t owned = load.total_blocks - load.free_blocks -
                         load.exported_blocks - load.importing_blocks -
                         load.deferred_blocks;
  running_requests_.Set(load.running_requests);
  waiting_requests_.Set(load.waiting_requests);
  free_blocks_.Set(load.free_blocks);
  owned_blocks_.Set(owned);
  exported_blocks_.Set(load.exported_blocks);
  importing_blocks_.Set(load.importing_blocks);
  deferred_blocks_.Set(load.deferred_blocks);
  inflight_tokens_.Set(load.inflight_tokens);
  importing_requests_.Set(load.importing_requests);
  exporting_requests_.Set(load.exporting_requests);
  kv_utilization_.Set(1.0 - static_cast<double>(load.free_blocks) /
                                load.total_blocks);
}

void WorkerMetrics::SetTransfers(const KvTransferCounters& counters) {
  absl::MutexLock lock(&transfers_mutex_);
  Raise(&damaged_blocks_, counters.damaged_blocks);
  Raise(&malformed_messages_, counters.malformed_messages);
  Raise(&ignored_messages_, counters.ignored_messages);
}

}  // namespace baton
