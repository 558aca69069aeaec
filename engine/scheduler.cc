#include "engine/scheduler.h"

#include <algorithm>

#include "base/logging.h"
#include "engine/cache_spec.h"

namespace baton {
namespace {

// Both sets are sorted by id.
std::vector<SequenceMetadata*>::iterator PlaceOf(
    std::vector<SequenceMetadata*>& set, SequenceId id) {
  return std::lower_bound(
      set.begin(), set.end(), id,
      [](const SequenceMetadata* a, SequenceId b) { return a->id < b; });
}

void Insert(std::vector<SequenceMetadata*>& set, SequenceMetadata* sequence) {
  set.insert(PlaceOf(set, sequence->id), sequence);
}

void Erase(std::vector<SequenceMetadata*>& set, SequenceMetadata* sequence) {
  const auto place = PlaceOf(set, sequence->id);
  CHECK(place != set.end() && *place == sequence);
  set.erase(place);
}

// Forgets all computed rows; results of launched ones will be ignored.
void Forget(SequenceMetadata* sequence) {
  sequence->computed_rows = 0;
  sequence->inflight_rows = 0;
  ++sequence->generation;
}

// Rows that no launched step has.
uint32_t RowsToCompute(const SequenceMetadata& sequence) {
  return sequence.num_tokens() - sequence.launched_rows();
}

void PlanRows(SequenceMetadata* sequence, uint32_t num_rows,
              SchedulerOutput* plan) {
  const uint32_t first = sequence->launched_rows();
  plan->rows.push_back({.sequence = sequence,
                        .generation = sequence->generation,
                        .first_position = first,
                        .num_rows = num_rows});
  plan->num_rows += num_rows;
  sequence->inflight_rows += num_rows;
  if (first + num_rows < sequence->num_tokens()) return;
  plan->samples.push_back(
      {.sequence = sequence,
       .generation = sequence->generation,
       .logits_row = static_cast<uint32_t>(plan->logits_rows.size()),
       .position = sequence->num_tokens()});
  plan->logits_rows.push_back(static_cast<int32_t>(plan->num_rows) - 1);
}

bool HasRowsToPrefill(const SequenceMetadata* sequence) {
  return sequence->phase() == SequencePhase::kPrefilling &&
         RowsToCompute(*sequence) > 0;
}

// Its newest token is known, and no launched step has its row.
bool CanDecode(const SequenceMetadata* sequence) {
  return sequence->phase() == SequencePhase::kDecoding &&
         RowsToCompute(*sequence) > 0;
}

}  // namespace

Scheduler::Scheduler(const EngineOptions& options, KvCacheManager* kv)
    : options_(options), kv_(kv) {
  CHECK_GT(options.max_running_requests, 0u);
  CHECK_GT(options.max_chunk_tokens, 0u);
  CHECK_GE(options.max_batched_tokens, options.max_chunk_tokens);
  running_.reserve(options.max_running_requests);
  admitted_.reserve(options.max_running_requests);
}

void Scheduler::Enqueue(SequenceMetadata* sequence) {
  CHECK(sequence->phase() == SequencePhase::kWaiting);
  CHECK(waiting_.empty() || waiting_.back()->id < sequence->id);
  waiting_.push_back(sequence);
}

std::span<SequenceMetadata* const> Scheduler::Admit() {
  admitted_.clear();
  for (SequenceMetadata* sequence : waiting_) {
    if (!TryAdmit(sequence)) break;
    admitted_.push_back(sequence);
  }
  waiting_.erase(waiting_.begin(), waiting_.begin() + admitted_.size());
  return admitted_;
}

bool Scheduler::TryAdmit(SequenceMetadata* sequence) {
  if (running_.size() >= options_.max_running_requests) return false;
  // A free block for each one whose KV grows, else the newcomer would soon be
  // preempted for it. Alone it needs no room to spare.
  const auto growing = std::count_if(
      running_.begin(), running_.end(),
      [](const SequenceMetadata* running) { return !running->exports(); });
  const uint64_t blocks = CacheSpec::BlocksFor(sequence->num_tokens());
  if (blocks + growing > kv_->num_free()) return false;
  CHECK(kv_->Reserve(&sequence->kv, sequence->num_tokens()));
  sequence->SetPhase(sequence->imports() ? SequencePhase::kImportingKv
                                         : SequencePhase::kPrefilling);
  Insert(running_, sequence);
  return true;
}

void Scheduler::Schedule(StepId step, SchedulerOutput* plan) {
  plan->step = step;
  plan->rows.clear();
  plan->logits_rows.clear();
  plan->samples.clear();
  plan->num_rows = 0;
  plan->preemptions = 0;

  const bool decode_first = !PrefillIsDue();
  if (decode_first) PlanDecode(plan);
  if (plan->empty()) PlanPrefill(plan);
  if (plan->empty() && !decode_first) PlanDecode(plan);

  if (plan->empty()) return;
  decode_steps_since_prefill_ =
      plan->type == StepType::kPrefill ? 0 : decode_steps_since_prefill_ + 1;
}

bool Scheduler::PrefillIsDue() const {
  return decode_steps_since_prefill_ >= options_.decode_steps_per_prefill;
}

void Scheduler::PlanPrefill(SchedulerOutput* plan) {
  plan->type = StepType::kPrefill;
  for (SequenceMetadata* sequence : running_) {
    if (!HasRowsToPrefill(sequence)) continue;
    const uint32_t room = options_.max_batched_tokens - plan->num_rows;
    if (room == 0) break;
    PlanRows(
        sequence,
        std::min({RowsToCompute(*sequence), options_.max_chunk_tokens, room}),
        plan);
    if (sequence->kv.state() == KvRangeState::kReserved) {
      kv_->Transition(&sequence->kv, KvRangeState::kFilling);
    }
  }
}

void Scheduler::PlanDecode(SchedulerOutput* plan) {
  plan->type = StepType::kDecode;
  // By index: growing may take younger sequences out behind i.
  for (size_t i = 0; i < running_.size(); ++i) {
    SequenceMetadata* sequence = running_[i];
    if (!CanDecode(sequence)) continue;
    if (!GrowForNextRow(sequence, plan)) continue;
    PlanRows(sequence, 1, plan);
  }
}

// False: no block for now; it sits this step out and keeps what it has.
bool Scheduler::GrowForNextRow(SequenceMetadata* sequence,
                               SchedulerOutput* plan) {
  const uint32_t rows = sequence->launched_rows() + 1;
  while (!kv_->Reserve(&sequence->kv, rows)) {
    // Blocks that a step in flight still holds will be free soon.
    if (kv_->num_in(KvRangeState::kQuarantined) > 0) return false;
    SequenceMetadata* youngest = YoungestBehind(*sequence);
    if (youngest == nullptr) return false;
    Preempt(youngest);
    ++plan->preemptions;
  }
  return true;
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

bool Scheduler::CanPreempt(const SequenceMetadata& sequence) {
  return !sequence.exports() &&
         (sequence.phase() == SequencePhase::kPrefilling ||
          sequence.phase() == SequencePhase::kDecoding);
}

void Scheduler::Preempt(SequenceMetadata* sequence) {
  CHECK(CanPreempt(*sequence));
  Erase(running_, sequence);
  kv_->Release(&sequence->kv);
  Forget(sequence);
  sequence->SetPhase(SequencePhase::kWaiting);
  Insert(waiting_, sequence);
}

void Scheduler::Remove(SequenceMetadata* sequence) {
  const bool waits = sequence->phase() == SequencePhase::kWaiting;
  Erase(waits ? waiting_ : running_, sequence);
  ++sequence->generation;
  sequence->inflight_rows = 0;
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
    CHECK_LE(sequence->launched_rows(), sequence->num_tokens());
    CHECK_LE(sequence->launched_rows(),
             sequence->kv.blocks().size() * CacheSpec::kBlockTokens);
  }
}

}  // namespace baton
