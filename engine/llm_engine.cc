#include "engine/llm_engine.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/cache_spec.h"

namespace baton {
namespace {

RequestLimits MakeLimits(const EngineOptions& options,
                         const ModelRunnerInfo& model, const KvPool& pool) {
  const uint64_t pool_tokens =
      uint64_t{pool.num_blocks()} * CacheSpec::kBlockTokens;
  RequestLimits limits;
  limits.vocab_size = model.vocab_size;
  limits.context_limited_by_pool = pool_tokens < model.max_context_tokens;
  limits.max_context_tokens = static_cast<uint32_t>(
      std::min<uint64_t>(pool_tokens, model.max_context_tokens));
  limits.max_samples =
      std::min(limits.max_samples, options.max_waiting_requests);
  return limits;
}

RequestActivity ActivityIn(SequencePhase phase) {
  switch (phase) {
    case SequencePhase::kPrefilling:
      return RequestActivity::kPrefill;
    case SequencePhase::kImportingKv:
    case SequencePhase::kExported:
      return RequestActivity::kTransfer;
    case SequencePhase::kDecoding:
      return RequestActivity::kDecode;
    case SequencePhase::kWaiting:
    case SequencePhase::kEnding:
    case SequencePhase::kFinished:
      break;
  }
  return RequestActivity::kQueued;
}

uint32_t MaxCachedRows(const EngineOptions& options,
                       const ModelRunnerInfo& model,
                       const GenerationRequest& request) {
  if (!options.prefix_cache || request.bypass_prefix_cache) return 0;
  // Behind the prompt a row's form depends on where that ends.
  return model.prompt_has_own_form ? request.original_prompt_tokens
                                   : std::numeric_limits<uint32_t>::max();
}

// For the cache, and for the handle.
PrefixChain NamePrefix(const EngineOptions& options,
                       const ModelRunnerInfo& model,
                       const GenerationRequest& request) {
  PrefixChain prefix(request.cache_salt, model.prompt_has_own_form
                                             ? PrefixForm::kExpanded
                                             : PrefixForm::kAbsorbed);
  if (request.mode == RequestMode::kPrefill || request.kv_handle.has_value() ||
      MaxCachedRows(options, model, request) > 0) {
    prefix.Extend(request.token_ids);
  }
  return prefix;
}

constexpr absl::Duration kShortestWait = absl::Microseconds(10);

void WakeEngine(void* engine) { static_cast<LLMEngine*>(engine)->Wake(); }

// Takes `count` of `limit` places, counted in `*taken`; false if there are
// fewer.
bool TakePlaces(uint32_t count, uint32_t limit, std::atomic<uint32_t>* taken) {
  uint32_t now = taken->load();
  while (now + count <= limit) {
    if (taken->compare_exchange_weak(now, now + count)) return true;
  }
  return false;
}

}  // namespace

LLMEngine::LLMEngine(const EngineOptions& options,
                     const EngineEnvironment& environment)
    : options_(options),
      environment_(environment),
      model_(environment.executor->info()),
      limits_(MakeLimits(options, model_, *environment.pool)),
      abort_meter_(environment.abort_observer),
      kv_(model_.cache, environment.pool),
      scheduler_(options, &kv_),
      worker_(options, environment.executor, environment.pool->num_blocks()) {
  environment.executor->SetAfterStep({&WakeEngine, this});
  UpdateLoad();
}

LLMEngine::~LLMEngine() { CHECK(idle()); }

absl::Status LLMEngine::Submit(GenerationRequest request,
                               std::span<TokenSink* const> sinks) {
  RETURN_IF_ERROR(ValidateRequest(request, limits_));
  const PrefixChain prefix = NamePrefix(options_, model_, request);
  RETURN_IF_ERROR(CheckTransfer(request, prefix));
  CHECK_EQ(sinks.size(), request.num_samples);
  if (!TakePlaces(request.num_samples, options_.max_waiting_requests,
                  &num_waiting_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.max_waiting_requests, " requests wait already"));
  }
  const absl::Time now = environment_.clock->Now();
  const uint32_t max_cached_rows = MaxCachedRows(options_, model_, request);
  SubmitCommand command;
  const auto add = [&](GenerationRequest sample, TokenSink* sink) {
    auto added =
        std::make_unique<SequenceMetadata>(std::move(sample), sink, now);
    added->max_cached_rows = max_cached_rows;
    added->prefix = prefix;
    command.samples.push_back(std::move(added));
  };
  for (TokenSink* sink : sinks.first(sinks.size() - 1)) {
    add(request, sink);
    ++request.sample_index;
    request.kv_handle.reset();
    request.prompt_logprobs_from.reset();
  }
  add(std::move(request), sinks.back());
  Push(std::move(command));
  return absl::OkStatus();
}

template <typename Command>
void LLMEngine::Push(Command command) {
  inbox_.Push(std::move(command));
  const DeviceTask& on_work = environment_.on_work;
  if (on_work.run != nullptr) on_work.run(on_work.argument);
}

void LLMEngine::Wake() {
  inbox_.Wake();
  const DeviceTask& on_work = environment_.on_work;
  if (on_work.run != nullptr) on_work.run(on_work.argument);
}

void LLMEngine::Abort(const RequestId& id,
                      std::optional<uint32_t> sample_index) {
  Push(AbortCommand{id, sample_index,
                    abort_meter_.Stamp(environment_.clock->Now())});
}

void LLMEngine::SetPaused(const PauseCommand& samples) { Push(samples); }

uint32_t LLMEngine::ShedWaiting(const absl::Status& status) {
  const uint32_t half = (num_waiting_.load() + 1) / 2;
  if (half > 0) Push(ShedCommand{half, status});
  return half;
}

void LLMEngine::OnTransferEvent(KvTransferEvent event) {
  Push(std::move(event));
}

EngineLoad LLMEngine::load() const {
  absl::MutexLock lock(&load_mutex_);
  return load_;
}

bool LLMEngine::Advance() {
  const absl::Time turn_start = environment_.clock->Now();
  const bool collected = Collect();
  const bool launched = LaunchNextStep(turn_start);
  if (launched) UpdateLoad();
  return collected || launched;
}

bool LLMEngine::Collect() {
  bool busy = DrainInbox();
  busy |= CommitDoneSteps();
  busy |= EndLateSequences(environment_.clock->Now());
  busy |= AdmitSequences();
  if (!busy) return false;
  deferred_sequences_.Collect(
      newest_done_, [this](const std::unique_ptr<SequenceMetadata>& sequence) {
        abort_meter_.OnFree(*sequence, environment_.clock->Now());
      });
  UpdateLoad();
  if (idle()) CheckInvariants();
  return true;
}

bool LLMEngine::idle() const {
  return num_waiting_.load() == 0 && sequences_.empty() && worker_.idle() &&
         kv_.num_free() == kv_.num_blocks();
}

void LLMEngine::WaitForWork(absl::Duration timeout) {
  inbox_.WaitForItem(TimeToNextTurn(timeout));
}

absl::Duration LLMEngine::TimeToNextTurn(absl::Duration longest) const {
  absl::Duration timeout = longest;
  if (!deadlines_.empty()) {
    const absl::Time next = deadlines_.begin()->first;
    timeout = std::min(timeout, next - environment_.clock->Now());
  }
  if (worker_.num_in_flight() > 1) timeout = std::min(timeout, TimeToStepEnd());
  return timeout;
}

absl::Duration LLMEngine::TimeToStepEnd() const {
  const StepType type = worker_.in_flight(0).plan.type;
  const absl::Duration usual = device_time_[static_cast<size_t>(type)];
  const absl::Time now = environment_.clock->Now();
  const absl::Time end = device_busy_until_.value_or(now) + usual;
  // Late: looked after every so often.
  return std::max({end - now, usual / 16, kShortestWait});
}

bool LLMEngine::Preempt(const RequestId& id, uint32_t sample_index) {
  const auto found = sequences_.find({id, sample_index});
  if (found == sequences_.end()) return false;
  if (!Scheduler::CanPreempt(*found->second)) return false;
  scheduler_.Preempt(found->second.get());
  return true;
}

bool LLMEngine::EndLateSequences(absl::Time now) {
  bool busy = false;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    SequenceMetadata& sequence = Live(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
    sequence.MarkUnwanted(abort_meter_.StampOf(sequence.request.deadline));
    End(&sequence, absl::DeadlineExceededError("the deadline has passed"));
    busy = true;
  }
  return busy;
}

bool LLMEngine::AdmitSequences() {
  const auto admitted = scheduler_.Admit();
  for (SequenceMetadata* sequence : admitted) {
    if (sequence->first_admitted == absl::InfiniteFuture()) {
      sequence->first_admitted = environment_.clock->Now();
      const uint32_t cached =
          sequence->prefix.position.num_blocks * CacheSpec::kBlockTokens;
      sequence->cached_tokens = sequence->computed_rows;
      sequence->decode_cached_tokens = sequence->imports() ? cached : 0;
      --num_waiting_;
    }
    if (sequence->phase() == SequencePhase::kImportingKv) {
      StartImport(sequence);
    } else if (sequence->exports()) {
      StartExport(sequence);
    }
  }
  return !admitted.empty();
}

bool LLMEngine::LaunchNextStep(absl::Time turn_start) {
  WorkerStepState* step = worker_.NextStep();
  if (step == nullptr) return false;
  StepId next = newest_launched_;
  scheduler_.Schedule(++next, &step->plan);
  if (step->plan.empty()) {
    if (worker_.num_in_flight() == 0) device_busy_until_.reset();
    return false;
  }
  Launch(step, turn_start);
  return true;
}

absl::Time LLMEngine::IdleSince() const {
  const int in_flight = worker_.num_in_flight();
  if (in_flight == 0) return device_busy_until_.value_or(absl::InfinitePast());
  const WorkerStepState& newest = worker_.in_flight(in_flight - 1);
  return environment_.executor->HasFired(newest.sample_event)
             ? newest.output.device_end
             : absl::InfiniteFuture();
}

bool LLMEngine::PlanStep(const StepBounds& bounds) {
  plan_start_ = environment_.clock->Now();
  WorkerStepState* step = worker_.NextStep();
  CHECK(step != nullptr) << "too many steps in flight";
  StepId next = newest_launched_;
  scheduler_.PlanWithin(bounds, ++next, &step->plan);
  return !step->plan.empty();
}

void LLMEngine::LaunchStep(const GroupStep& group) {
  WorkerStepState* step = worker_.NextStep();
  if (group.is_behind_pause) device_busy_until_.reset();
  step->input.expert_slots = group.expert_slots;
  step->input.num_draft_passes = group.num_draft_passes;
  scheduler_.MarkInFlight(&step->plan);
  Launch(step, plan_start_);
}

void LLMEngine::Launch(WorkerStepState* step, absl::Time turn_start) {
  newest_launched_ = step->plan.step;
  kv_.StepLaunched(newest_launched_);
  worker_.LaunchForward(step);
  worker_.LaunchSample(step);
  const absl::Time now = environment_.clock->Now();
  abort_meter_.OnLaunch(newest_launched_, now);
  history_.OnLaunch(step->plan, turn_start, now);
  step->schedule_time = now - turn_start;
}

void LLMEngine::End(SequenceMetadata* sequence, absl::Status status) {
  const ExportId export_id(sequence->id.value());
  switch (sequence->phase()) {
    case SequencePhase::kWaiting:
    case SequencePhase::kPrefilling:
    case SequencePhase::kDecoding:
    case SequencePhase::kImportingKv:
      scheduler_.Remove(sequence);
      break;
    case SequencePhase::kExported:
      break;
    case SequencePhase::kEnding:
    case SequencePhase::kFinished:
      return;
  }
  if (sequence->kv.state() == KvRangeState::kExported) {
    environment_.transfer.EndExport(export_id);
  } else if (sequence->kv.state() == KvRangeState::kImporting) {
    environment_.transfer.CancelImport(ImportId(sequence->id.value()));
  } else {
    kv_.Release(&sequence->kv);
    Finish(sequence, status);
    return;
  }
  sequence->end_status = std::move(status);
  sequence->ended_in = ActivityIn(sequence->phase());
  sequence->SetPhase(SequencePhase::kEnding);
}

bool LLMEngine::EndUnfinished(const absl::Status& status) {
  bool ended = false;
  for (auto it = by_id_.begin(); it != by_id_.end();) {
    SequenceMetadata* sequence = (it++)->second;  // End may erase it.
    if (sequence->phase() == SequencePhase::kExported ||
        sequence->phase() == SequencePhase::kEnding) {
      continue;
    }
    End(sequence, status);
    ended = true;
  }
  if (ended) UpdateLoad();
  return ended;
}

void LLMEngine::Finish(SequenceMetadata* sequence, const absl::Status& status) {
  CHECK(sequence->kv.state() == KvRangeState::kFree);
  if (sequence->phase() != SequencePhase::kEnding) {
    sequence->ended_in = ActivityIn(sequence->phase());
  }
  sequence->SetPhase(SequencePhase::kFinished);
  if (sequence->first_admitted == absl::InfiniteFuture()) --num_waiting_;
  deadlines_.erase({sequence->request.deadline, sequence->id});
  by_id_.erase(sequence->id);
  auto node = sequences_.extract(
      {sequence->request.id, sequence->request.sample_index});
  deferred_sequences_.Add(newest_launched_, std::move(node.mapped()));
  TellFinished(*sequence, status, environment_.clock->Now());
}

SequenceMetadata& LLMEngine::Live(SequenceId id) const {
  const auto found = by_id_.find(id);
  CHECK(found != by_id_.end()) << "sequence " << id << " is not live";
  return *found->second;
}

void LLMEngine::UpdateLoad() {
  EngineLoad load;
  load.pending_prefill_tokens = scheduler_.waiting_tokens();
  for (const SequenceMetadata* sequence : scheduler_.running()) {
    load.importing_requests += sequence->phase() == SequencePhase::kImportingKv;
    load.inflight_tokens += sequence->total_inflight_tokens;
    load.paused_requests += sequence->paused;
    if (sequence->phase() != SequencePhase::kPrefilling) continue;
    load.pending_prefill_tokens +=
        sequence->num_tokens() - sequence->computed_rows;
  }
  for (const SequenceMetadata* sequence : scheduler_.waiting()) {
    load.paused_requests += sequence->paused;
  }
  load.running_requests = static_cast<uint32_t>(scheduler_.running().size());
  load.waiting_requests = static_cast<uint32_t>(scheduler_.waiting().size());
  load.exporting_requests = num_exporting_;
  load.total_blocks = kv_.num_blocks();
  load.free_blocks = kv_.num_free();
  load.cached_blocks = kv_.prefix_cache().num_blocks();
  load.prefix_cache = scheduler_.prefix_counts();
  load.prefix_cache.evicted_blocks = kv_.prefix_cache().num_evicted();
  // Several exports may have a block; it counts once at most.
  load.exported_blocks =
      std::min(kv_.num_in(KvRangeState::kExported), kv_.num_held());
  load.importing_blocks = importing_blocks_;
  load.deferred_blocks = kv_.num_deferred();
  load.steps = history_.counts();
  absl::MutexLock lock(&load_mutex_);
  load_ = load;
}

void LLMEngine::CheckInvariants() const {
  scheduler_.CheckInvariants();
  std::vector<const KvBlockRange*> ranges;
  std::map<const SequenceMetadata*, uint32_t> inflight;
  for (int i = 0; i < worker_.num_in_flight(); ++i) {
    for (const ScheduledRows& rows : worker_.in_flight(i).plan.rows) {
      if (rows.generation != rows.sequence->generation) continue;
      inflight[rows.sequence] += rows.num_rows;
    }
  }
  for (const auto& [key, sequence] : sequences_) {
    ranges.push_back(&sequence->kv);
    CHECK_EQ(sequence->inflight_rows, inflight[sequence.get()])
        << "request " << key.first;
    CHECK(&Live(sequence->id) == sequence.get());
  }
  CHECK_EQ(sequences_.size(), by_id_.size());
  kv_.CheckInvariants(ranges);
}

}  // namespace baton
