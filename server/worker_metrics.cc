#include "server/worker_metrics.h"

#include <algorithm>

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
  Counter& PromptTokens(const char* source) const {
    return OneCounter(
        "baton_prompt_tokens_by_source_total",
        "Prompt tokens of requests that ended well, by where their KV came "
        "from: computed here, found in the prefix cache here, or moved here.",
        {{"source", source}});
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

const Histogram::BucketBoundaries& StepBuckets() {
  static const Histogram::BucketBoundaries buckets = {0, 1, 2, 3, 4, 8, 16, 64};
  return buckets;
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
      abort_to_free_time_(make.OneHistogram(
          "baton_abort_to_free_seconds",
          "From an abort's arrival, or a deadline, until the request's blocks "
          "were free, if it had some.")),
      abort_to_free_steps_(make.OneHistogram(
          "baton_abort_to_free_steps",
          "Steps launched from an abort's arrival, or a deadline, until the "
          "request's blocks were free, if it had some.",
          StepBuckets())),
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
      computed_tokens_(make.PromptTokens("local_compute")),
      found_tokens_(make.PromptTokens("prefix_cache")),
      imported_tokens_(make.PromptTokens("kv_transfer")),
      kv_transfer_bytes_(make.OneCounter("baton_kv_transfer_bytes_total",
                                         "Bytes of KV imported.")),
      kv_transfer_time_(make.OneHistogram(
          "baton_kv_transfer_seconds", "From a KV import's start to its end.")),
      running_requests_(
          make.OneGauge("baton_running_requests", "Requests in the batch.")),
      waiting_requests_(
          make.OneGauge("baton_waiting_requests", "Requests in the queue.")),
      paused_requests_(make.OneGauge(
          "baton_paused_requests",
          "Requests, in the batch or the queue, that stand still for slow "
          "readers.")),
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
      prefix_cache_blocks_(make.OneGauge(
          "baton_prefix_cache_blocks",
          "Blocks of the KV pool that are found by their tokens; those that no "
          "request uses count as free.")),
      importing_requests_(make.Transfers("import")),
      exporting_requests_(make.Transfers("export")),
      damaged_blocks_(make.OneCounter(
          "baton_kv_damaged_blocks_total",
          "Blocks of KV that arrived unlike their checksum, with "
          "--kv_checksums.")),
      malformed_messages_(make.DroppedMessages("malformed")),
      ignored_messages_(make.DroppedMessages("ignored")),
      queried_tokens_(make.OneCounter(
          "baton_prefix_cache_queried_tokens_total",
          "Tokens of requests that took a place in the batch and asked the "
          "prefix cache.")),
      hit_tokens_(make.OneCounter(
          "baton_prefix_cache_hit_tokens_total",
          "Tokens of requests that took a place in the batch which were found "
          "in the prefix cache, and neither computed nor moved.")),
      evicted_blocks_(make.OneCounter("baton_prefix_cache_evicted_blocks_total",
                                      "Blocks forgotten, to be used anew.")) {
  // There before the first one.
  for (const RequestActivity activity :
       {RequestActivity::kQueued, RequestActivity::kPrefill,
        RequestActivity::kTransfer, RequestActivity::kDecode}) {
    aborted_requests_.Add({{"phase", ActivityName(activity)}});
  }
}

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
  cached_tokens_.Increment(outcome.cached_tokens +
                           outcome.decode_cached_tokens);
  CountPrompt(outcome);
  if (outcome.transfer_bytes == 0) return;
  kv_transfer_bytes_.Increment(static_cast<double>(outcome.transfer_bytes));
  kv_transfer_time_.Observe(absl::ToDoubleSeconds(outcome.transfer_time));
}

// Tokens that an earlier attempt had generated are not the prompt's.
void WorkerMetrics::CountPrompt(const GenerationOutcome& outcome) {
  if (!outcome.status.ok()) return;
  const uint32_t found =
      std::min(outcome.cached_tokens + outcome.decode_cached_tokens,
               outcome.prompt_tokens);
  const bool imported = outcome.transfer_bytes > 0;
  found_tokens_.Increment(found);
  (imported ? imported_tokens_ : computed_tokens_)
      .Increment(outcome.prompt_tokens - found);
}

void WorkerMetrics::OnAbort(const AbortStats& stats) {
  abort_to_free_time_.Observe(absl::ToDoubleSeconds(stats.time));
  abort_to_free_steps_.Observe(static_cast<double>(stats.steps));
}

void WorkerMetrics::SetLoad(const EngineLoad& load) {
  // A shared block may be counted among the others more than once.
  const uint32_t used = load.total_blocks - load.free_blocks;
  const uint32_t others =
      load.exported_blocks + load.importing_blocks + load.deferred_blocks;
  const uint32_t owned = used - std::min(used, others);
  running_requests_.Set(load.running_requests);
  waiting_requests_.Set(load.waiting_requests);
  paused_requests_.Set(load.paused_requests);
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
  prefix_cache_blocks_.Set(load.cached_blocks);
  absl::MutexLock lock(&raise_mutex_);
  RaiseTo(load.prefix_cache.queried_tokens, &queried_tokens_);
  RaiseTo(load.prefix_cache.hit_tokens, &hit_tokens_);
  RaiseTo(load.prefix_cache.evicted_blocks, &evicted_blocks_);
}

void WorkerMetrics::SetTransfers(const KvTransferCounters& counters) {
  absl::MutexLock lock(&raise_mutex_);
  RaiseTo(counters.damaged_blocks, &damaged_blocks_);
  RaiseTo(counters.malformed_messages, &malformed_messages_);
  RaiseTo(counters.ignored_messages, &ignored_messages_);
}

}  // namespace baton
