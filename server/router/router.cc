#include "server/router/router.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/logging.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

ModelBounds BoundsOfText(const TextModel& text) {
  ModelBounds bounds;
  bounds.vocab_size = text.vocab_size;
  for (uint32_t id = 0; id < text.tokenizer->vocab_size(); ++id) {
    bounds.longest_token_bytes = std::max(
        bounds.longest_token_bytes, text.tokenizer->TokenBytes(id).size());
  }
  const GenerationConfig& config = text.generation_config;
  const SamplingPlan plain;
  bounds.sampling_defaults = {
      .temperature = config.temperature.value_or(plain.temperature),
      .top_p = config.top_p.value_or(plain.top_p),
      .min_p = config.min_p.value_or(plain.min_p),
      .top_k = config.top_k.value_or(plain.top_k),
      .seed = std::nullopt};
  bounds.eos_token_ids = config.eos_token_ids;
  return bounds;
}

}  // namespace

Router::Router(Options options, const TextModel* text,
               prometheus::Registry* registry)
    : options_(std::move(options)),
      text_(*text),
      text_bounds_(BoundsOfText(*text)),
      nonce_(RandomBits()),
      admission_(options_.admission),
      metrics_(registry),
      retry_budget_(options_.retry_budget),
      stream_metrics_(registry, "router"),
      streams_(options_.streams),
      ticker_(&streams_),
      pool_({.workers = options_.workers,
             .text_hash = text->text_hash,
             .vocab_size = text->vocab_size,
             .make_policy = options_.make_policy,
             .ejection = options_.ejection,
             .clock = &clock_,
             .on_ready_change = options_.on_ready_change,
             .on_ejection =
                 [this](EjectionReason why) {
                   metrics_.CountEjection(EjectionReasonName(why));
                 },
             .on_gone = [this](WorkerId id) { connections_.OnGone(id); }}),
      connections_(options_.prober, &pool_) {}

Router::~Router() {
  absl::MutexLock lock(&mutex_);
  const absl::Condition no_calls(
      +[](uint64_t* num_calls) { return *num_calls == 0; }, &num_calls_);
  CHECK(mutex_.AwaitWithTimeout(no_calls, options_.call_end_timeout))
      << num_calls_ << " calls have not ended";
}

void Router::OnCallMade() {
  absl::MutexLock lock(&mutex_);
  ++num_calls_;
}

void Router::OnCallDeleted() {
  absl::MutexLock lock(&mutex_);
  --num_calls_;
}

absl::Status Router::TakeRetry(bool resumes) {
  const absl::Time now = clock_.Now();
  if (resumes ? retry_budget_.TakeResume(now) : retry_budget_.TakeRetry(now)) {
    return absl::OkStatus();
  }
  metrics_.CountRetryRefused(resumes);
  return WithReason(
      WithRetryDelay(
          absl::UnavailableError("a worker was lost, and too many requests are "
                                 "being tried again"),
          absl::Seconds(1)),
      "RETRY_BUDGET");
}

void Router::OnSuspect(WorkerId worker) {
  pool_.OnSuspect(worker);
  connections_.ProbeSoon(worker);
}

void Router::SetWorkers(std::vector<WorkerAddress> workers) {
  connections_.SetWorkers(std::move(workers));
}

void Router::UpdateGauges() {
  metrics_.running_requests.Set(admission_.num_running());
  metrics_.waiting_requests.Set(admission_.num_waiting());
  metrics_.ejected_workers.Set(pool_.num_ejected());
  constexpr std::array<v1::WorkerRole, kWorkerPools.size()> kRoles = {
      v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE, v1::WORKER_ROLE_UNIFIED};
  for (size_t i = 0; i < kRoles.size(); ++i) {
    metrics_.SetWorkers(kWorkerPools[i], pool_.CountStates(kRoles[i]));
  }
  stream_metrics_.Set(streams_.counts());
}

absl::StatusOr<ModelBounds> Router::Bounds() const {
  ASSIGN_OR_RETURN(const ServedModel served, pool_.Served());
  ModelBounds bounds = text_bounds_;
  bounds.max_context_tokens = served.max_context_tokens;
  return bounds;
}

}  // namespace baton
