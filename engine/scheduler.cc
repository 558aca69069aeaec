#include "engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "engine/cache_spec.h"

namespace baton {
namespace {

// Under adaptive verification a draft more is made each so many decode steps.
constexpr uint32_t kStepsPerLongerChain = 8;

// Rows whose tokens the host knows, and that no launched step has.
uint32_t HostRows(const SequenceMetadata& sequence) {
  if (sequence.on_device) return 0;
  return sequence.num_tokens() - sequence.launched_rows();
}

bool HasRowsToPrefill(const SequenceMetadata* sequence) {
  return !sequence->paused && sequence->phase() == SequencePhase::kPrefilling &&
         HostRows(*sequence) > 0;
}

// Rows of its next chunk at most, if it is to have at most so many rows with
// logits.
uint32_t RowsWithLogits(const SequenceMetadata& sequence,
                        uint32_t max_logits_rows) {
  const uint32_t first_with_logits = sequence.tells_prompt()
                                         ? sequence.score_begin()
                                         : sequence.num_tokens() - 1;
  const uint32_t first = sequence.launched_rows();
  return std::max(first, first_with_logits) - first + max_logits_rows;
}

void CountDraw(SequenceMetadata* sequence, uint32_t max_tokens,
               uint32_t num_drafts) {
  sequence->total_inflight_tokens += max_tokens;
  ++sequence->inflight_draws;
  sequence->on_device = true;
  sequence->num_drafts = num_drafts;
}

// Its newest token is known, here or on the device, and may not be its last.
bool CanDecode(const SequenceMetadata* sequence) {
  if (sequence->exports() || sequence->paused) return false;
  if (!sequence->on_device) {
    return sequence->phase() == SequencePhase::kDecoding;
  }
  return sequence->min_launched_tokens() < sequence->max_total_tokens;
}

}  // namespace

Scheduler::Scheduler(const EngineOptions& options, KvCacheManager* kv)
    : options_(options),
      kv_(kv),
      planner_(options.step_curve, options.max_running_requests) {
  CHECK_GT(options.max_running_requests, 0u);
  CHECK_GT(options.max_chunk_tokens, 0u);
  CHECK_GE(options.max_batched_tokens, options.max_chunk_tokens);
  CHECK_LE(options.num_draft_tokens, kMaxDraftTokens);
  running_.reserve(options.max_running_requests);
  admitted_.reserve(options.max_running_requests);
  wishes_.reserve(options.max_running_requests);
  rates_.reserve(options.max_running_requests);
  verify_.reserve(options.max_running_requests);
  for (uint32_t i = options.max_running_requests; i > 0; --i) {
    free_slots_.push_back(i - 1);
  }
}

void Scheduler::Schedule(StepId step, SchedulerOutput* plan) {
  StepType type = PrefillIsDue() ? StepType::kPrefill : StepType::kDecode;
  PlanWithin(WidestBounds(type), step, plan);
  if (plan->empty()) {
    type = type == StepType::kPrefill ? StepType::kDecode : StepType::kPrefill;
    PlanWithin(WidestBounds(type), step, plan);
  }
  if (!plan->empty()) MarkInFlight(plan);
}

StepBounds Scheduler::WidestBounds(StepType type) const {
  return {.type = type,
          .max_rows = type == StepType::kPrefill ? options_.max_batched_tokens
                                                 : options_.max_logits_rows(),
          .max_drafts = options_.num_draft_tokens};
}

StepWish Scheduler::Wish() const {
  StepWish wish;
  uint32_t draws = 0;
  for (SequenceMetadata* sequence : running_) {
    if (HasRowsToPrefill(sequence)) {
      wish.prefill_tokens +=
          std::min(HostRows(*sequence), options_.max_chunk_tokens);
      wish.prefill_since = std::min(wish.prefill_since, sequence->submit_time);
      draws += sequence->exports() ? 0 : 1;
    }
    if (!CanDecode(sequence) || !MayGrow(sequence)) continue;
    wish.decode_rows += 1 + sequence->num_drafts;
    ++draws;
  }
  wish.prefill_tokens =
      std::min(wish.prefill_tokens, options_.max_batched_tokens);
  wish.num_drafts = draws > 0 ? options_.num_draft_tokens : 0;
  return wish;
}

void Scheduler::PlanWithin(const StepBounds& bounds, StepId step,
                           SchedulerOutput* plan) {
  plan->step = step;
  plan->type = bounds.type;
  plan->rows.clear();
  plan->num_rows = 0;
  if (bounds.type == StepType::kPrefill) {
    PlanPrefill(bounds, plan);
  } else {
    PlanDecode(bounds, plan);
  }
}

void Scheduler::MarkInFlight(SchedulerOutput* plan) {
  for (const ScheduledRows& rows : plan->rows) {
    SequenceMetadata* sequence = rows.sequence;
    if (sequence->kv.state() == KvRangeState::kReserved) {
      kv_->Transition(&sequence->kv, KvRangeState::kFilling);
    }
    sequence->inflight_rows += rows.num_rows;
    if (!rows.draws) continue;
    const uint32_t max_tokens =
        rows.source == RowSource::kDevice ? rows.num_rows : 1;
    CountDraw(sequence, max_tokens, rows.num_drafts);
  }
  plan->preemptions = std::exchange(preemptions_, 0);
  decode_steps_since_prefill_ =
      plan->type == StepType::kPrefill ? 0 : decode_steps_since_prefill_ + 1;
}

bool Scheduler::PrefillIsDue() const {
  return decode_steps_since_prefill_ >= options_.decode_steps_per_prefill;
}

void Scheduler::PlanPrefill(const StepBounds& bounds, SchedulerOutput* plan) {
  uint32_t logits_room = options_.max_logits_rows();
  for (SequenceMetadata* sequence : running_) {
    if (!HasRowsToPrefill(sequence)) continue;
    const uint32_t room = bounds.max_rows - plan->num_rows;
    if (room == 0) break;
    const uint32_t num_rows =
        std::min({HostRows(*sequence), options_.max_chunk_tokens, room,
                  RowsWithLogits(*sequence, logits_room)});
    if (num_rows == 0) continue;
    DecodeWish wish = {.sequence = sequence};
    if (num_rows == HostRows(*sequence) && !sequence->exports()) {
      wish.num_drafts = bounds.max_drafts;
      // A prompt goes without drafts rather than wait for their blocks.
      if (!Reserve(wish)) wish.num_drafts = 0;
    }
    PlanHostRows(wish, num_rows, plan);
    logits_room -= plan->rows.back().num_logits_rows();
  }
}

void Scheduler::PlanDecode(const StepBounds& bounds, SchedulerOutput* plan) {
  wishes_.clear();
  for (SequenceMetadata* sequence : running_) {
    if (CanDecode(sequence)) wishes_.push_back({.sequence = sequence});
  }
  if (drafts()) ChooseDraftsToVerify(bounds.max_drafts);
  for (DecodeWish& wish : wishes_) {
    // Preempted for an older one of this step.
    if (wish.sequence->phase() == SequencePhase::kWaiting) continue;
    if (plan->num_rows + 1 + wish.verify > bounds.max_rows) continue;
    if (!Grow(&wish)) continue;
    if (wish.sequence->on_device) {
      PlanDeviceRows(wish, plan);
    } else {
      PlanHostRows(wish, 1, plan);
    }
  }
}

// By what is known now: the drafts themselves may still be in flight, then the
// chances of those before them stand for theirs.
void Scheduler::ChooseDraftsToVerify(uint32_t max_drafts) {
  rates_.clear();
  for (const DecodeWish& wish : wishes_) {
    DraftRates rates = wish.sequence->draft_rates;
    std::fill(rates.confidence.begin() + rates.num_drafts,
              rates.confidence.end(), 1.0f);
    rates.num_drafts = wish.sequence->num_drafts;
    rates_.push_back(rates);
  }
  verify_.resize(wishes_.size());
  planner_.Choose(rates_, options_.max_logits_rows(), verify_);
  // A draft that won't be verified is made in vain; from time to time one more
  // shows whether it would pay.
  const bool adaptive = !options_.step_curve.empty();
  const uint32_t more = ++drafting_steps_ % kStepsPerLongerChain == 0 ? 1 : 0;
  for (size_t i = 0; i < wishes_.size(); ++i) {
    wishes_[i].verify = verify_[i];
    wishes_[i].num_drafts = max_drafts;
    if (!adaptive) continue;
    wishes_[i].num_drafts =
        std::min(max_drafts, std::max(verify_[i], 1u) + more);
  }
}

// Rows whose tokens the host knows. Behind the last of them it draws.
void Scheduler::PlanHostRows(const DecodeWish& wish, uint32_t num_rows,
                             SchedulerOutput* plan) {
  SequenceMetadata* sequence = wish.sequence;
  const uint32_t first = sequence->launched_rows();
  const uint32_t end = first + num_rows;
  const bool draws = end == sequence->num_tokens();
  const uint32_t score_begin = std::max(first, sequence->score_begin());
  const uint32_t score_end = std::min(end, sequence->score_end());
  plan->rows.push_back(
      {.sequence = sequence,
       .generation = sequence->generation,
       .source = RowSource::kHost,
       .first_position = first,
       .num_rows = num_rows,
       .draws = draws,
       .num_drafts = draws ? wish.num_drafts : 0,
       .first_scored = score_begin,
       .num_scored = std::max(score_begin, score_end) - score_begin});
  plan->num_rows += num_rows;
}

// Rows of the newest token and its drafts, whatever they will be.
void Scheduler::PlanDeviceRows(const DecodeWish& wish, SchedulerOutput* plan) {
  SequenceMetadata* sequence = wish.sequence;
  const uint32_t num_rows = 1 + wish.verify;
  plan->rows.push_back({.sequence = sequence,
                        .generation = sequence->generation,
                        .source = RowSource::kDevice,
                        .num_rows = num_rows,
                        .draws = true,
                        .num_drafts = wish.num_drafts});
  plan->num_rows += num_rows;
}

// False: not in this step. The sequence keeps what it has.
bool Scheduler::Grow(DecodeWish* wish) {
  if (Reserve(*wish)) return true;
  wish->verify = 0;
  wish->num_drafts = 0;
  while (!Reserve(*wish)) {
    // Its steps in flight may draw less than they might, and blocks that a step
    // in flight still holds will be free soon.
    if (wish->sequence->inflight_draws > 0) return false;
    if (kv_->num_in(KvRangeState::kQuarantined) > 0) return false;
    SequenceMetadata* victim = FindVictim(*wish->sequence);
    if (victim == nullptr) return false;
    Preempt(victim);
  }
  return true;
}

// What Grow would find. False: a decode step would bring it nothing, before an
// older one or a transfer gives blocks up.
bool Scheduler::MayGrow(SequenceMetadata* sequence) const {
  const uint32_t blocks = CacheSpec::BlocksFor(RowsOf({.sequence = sequence}));
  return blocks <= sequence->kv.blocks().size() || kv_->num_free() > 0 ||
         sequence->inflight_draws > 0 ||
         kv_->num_in(KvRangeState::kQuarantined) > 0 ||
         FindVictim(*sequence) != nullptr;
}

// The rows of the wish's step, the drafter's row of the newest token that it
// may draw, and the chain behind that.
uint32_t Scheduler::RowsOf(const DecodeWish& wish) const {
  const SequenceMetadata& sequence = *wish.sequence;
  const uint32_t drafter_rows = drafts() ? std::max(wish.num_drafts, 1u) : 0;
  const uint32_t rows =
      sequence.max_launched_tokens() + wish.verify + drafter_rows;
  return std::min(rows, sequence.end_position());
}

bool Scheduler::Reserve(const DecodeWish& wish) {
  return kv_->Reserve(&wish.sequence->kv, RowsOf(wish));
}

// The youngest sequence that is younger than this one and may be preempted.
SequenceMetadata* Scheduler::YoungestBehind(
    const SequenceMetadata& sequence) const {
  for (auto it = running_.rbegin(); it != running_.rend(); ++it) {
    if ((*it)->id <= sequence.id) return nullptr;
    if (CanPreempt(**it)) return *it;
  }
  return nullptr;
}

void Scheduler::CheckInvariants() const {
  const auto older = [](const SequenceMetadata* a, const SequenceMetadata* b) {
    return a->id < b->id;
  };
  CHECK(std::is_sorted(waiting_.begin(), waiting_.end(), older));
  CHECK(std::is_sorted(running_.begin(), running_.end(), older));
  CHECK_LE(running_.size(), options_.max_running_requests);
  for (const SequenceMetadata* sequence : waiting_) {
    CHECK(sequence->phase() == SequencePhase::kWaiting);
    CHECK(sequence->kv.state() == KvRangeState::kFree);
    CHECK_EQ(sequence->launched_rows(), 0u);
  }
  for (const SequenceMetadata* sequence : running_) {
    CHECK(sequence->phase() == SequencePhase::kPrefilling ||
          sequence->phase() == SequencePhase::kDecoding ||
          sequence->phase() == SequencePhase::kImportingKv);
    CHECK_LE(std::min(sequence->launched_rows(), sequence->end_position()),
             sequence->kv.blocks().size() * CacheSpec::kBlockTokens);
    CHECK_LE(sequence->inflight_draws, options_.pipeline_depth);
    if (!sequence->on_device) {
      CHECK_EQ(sequence->total_inflight_tokens, 0u);
      CHECK_LE(sequence->launched_rows(), sequence->num_tokens());
    }
  }
  CHECK_EQ(free_slots_.size() + running_.size(), options_.max_running_requests);
}

}  // namespace baton
