#include "engine/expert_mover.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "base/logging.h"

namespace baton {
namespace {

using enum ExpertMovePhase;

}  // namespace

ExpertTables::ExpertTables(ExpertPlacement placement, uint64_t version)
    : placement_(std::move(placement)), version_(version) {
  for (uint32_t l = 0; l < placement_.layout().num_layers; ++l) {
    slots_.push_back(placement_.view(l));
  }
}

ExpertMover::ExpertMover(const ExpertMoverOptions& options)
    : options_(options),
      current_(std::make_unique<ExpertTables>(ExpertPlacement(options.layout),
                                              /*version=*/0)) {
  CHECK_LE(options.first_rank + options.num_local_ranks,
           options.layout.num_ranks);
}

bool ExpertMover::AddMove(const RebalanceMessage& move) {
  const bool is_new_plan = newest_plan_ == closed_plan_;
  const bool is_next =
      move.placement == newest_version_ + 1 &&
      (is_new_plan ? move.plan == newest_plan_ + 1
                   : move.plan == newest_plan_ && move.plan_end == plan_end_);
  const bool starts_batch =
      batches_.empty() || newest_version_ >= batches_.back().end;
  if (!is_next || (!starts_batch && !FitsNewestBatch(move)) ||
      move.layer >= options_.layout.num_layers ||
      !CheckExperts(options_.layout, move.values).ok()) {
    return false;
  }
  if (starts_batch) batches_.push_back({.end = move.batch_end});
  batches_.back().layers.push_back(move.layer);
  batches_.back().experts.push_back(move.values);
  newest_version_ = move.placement;
  newest_plan_ = move.plan;
  plan_end_ = move.plan_end;
  MaybeStart();
  return true;
}

bool ExpertMover::FitsNewestBatch(const RebalanceMessage& move) const {
  const Batch& batch = batches_.back();
  return move.batch_end == batch.end &&
         std::find(batch.layers.begin(), batch.layers.end(), move.layer) ==
             batch.layers.end();
}

void ExpertMover::MaybeStart() {
  if (phase_ != kIdle || batches_.empty() ||
      newest_version_ < batches_.front().end) {
    return;
  }
  const Batch& batch = batches_.front();
  ExpertPlacement placement = current_->placement();
  for (size_t i = 0; i < batch.layers.size(); ++i) {
    CHECK_OK(placement.SetLayer(batch.layers[i], batch.experts[i]));
  }
  next_ = std::make_unique<ExpertTables>(std::move(placement), batch.end);
  wanted_ =
      LocalDifference(batch.layers, current_->placement(), next_->placement());
  MoveTo(kLoading);
  options_.load(wanted_);
}

bool ExpertMover::OnLoaded(bool ok) {
  CHECK(phase_ == kLoading || phase_ == kCancelled);
  if (ok) counters_.loaded_experts += wanted_.size();
  if (phase_ == kCancelled) {
    if (ok) Drop(wanted_);
    EndFront();
    return true;
  }
  MoveTo(ok ? kLoaded : kFailed);
  counters_.failed_batches += ok ? 0 : 1;
  return ok;
}

const ExpertTables* ExpertMover::OnStep(uint64_t step, uint64_t version) {
  if (phase_ == kLoaded && version >= next_->version()) {
    counters_.moved_layers += batches_.front().layers.size();
    old_ = std::move(current_);
    current_ = std::move(next_);
    switch_step_ = step;
    MoveTo(kRetiring);
    MaybeRetire();
  }
  return current_.get();
}

void ExpertMover::OnStepsDone(uint64_t num_done) {
  num_done_ = num_done;
  MaybeRetire();
}

void ExpertMover::MaybeRetire() {
  if (phase_ != kRetiring || num_done_ + 1 < switch_step_) return;
  std::vector<LayerExpert> unused = LocalDifference(
      batches_.front().layers, current_->placement(), old_->placement());
  old_.reset();
  Drop(std::move(unused));
  EndFront();
}

bool ExpertMover::MayAbandon(const RebalanceMessage& abandon) const {
  const uint64_t version = abandon.placement;
  const bool ends_batch =
      version == current_->version() ||
      std::any_of(batches_.begin(), batches_.end(),
                  [version](const Batch& b) { return b.end == version; });
  return ends_batch && abandon.plan == newest_plan_ &&
         newest_plan_ != closed_plan_ && newest_version_ >= plan_end_ &&
         version >= current_->version() && version < plan_end_;
}

bool ExpertMover::Abandon(const RebalanceMessage& abandon) {
  if (!MayAbandon(abandon)) return false;
  const uint64_t version = abandon.placement;
  plan_end_ = version;
  while (!batches_.empty() && batches_.back().end > version) {
    counters_.abandoned_layers += batches_.back().layers.size();
    if (batches_.size() == 1) {
      Cancel();
      return true;
    }
    batches_.pop_back();
  }
  return true;
}

// The batch under way, which is the only one left.
void ExpertMover::Cancel() {
  if (phase_ == kLoading) return MoveTo(kCancelled);
  CHECK(phase_ == kLoaded || phase_ == kFailed);
  if (phase_ == kLoaded) Drop(wanted_);
  EndFront();
}

void ExpertMover::EndFront() {
  MoveTo(kIdle);
  next_.reset();
  wanted_.clear();
  batches_.pop_front();
  if (batches_.empty() && newest_version_ >= plan_end_) {
    closed_plan_ = newest_plan_;
  }
  MaybeStart();
}

uint64_t ExpertMover::ready_version() const {
  return phase_ == kLoaded ? next_->version() : current_->version();
}

std::vector<LayerExpert> ExpertMover::LocalExperts(
    const ExpertPlacement& placement) const {
  std::vector<LayerExpert> experts;
  for (uint32_t layer = 0; layer < options_.layout.num_layers; ++layer) {
    AddLocal(placement, layer, &experts);
  }
  return experts;
}

std::vector<LayerExpert> ExpertMover::LocalDifference(
    const std::vector<uint32_t>& layers, const ExpertPlacement& from,
    const ExpertPlacement& to) const {
  std::vector<LayerExpert> added;
  for (const uint32_t layer : layers) {
    std::vector<LayerExpert> before, after;
    AddLocal(from, layer, &before);
    AddLocal(to, layer, &after);
    std::set_difference(after.begin(), after.end(), before.begin(),
                        before.end(), std::back_inserter(added));
  }
  return added;
}

// Ascending, each once.
void ExpertMover::AddLocal(const ExpertPlacement& placement, uint32_t layer,
                           std::vector<LayerExpert>* experts) const {
  for (const uint32_t expert : ExpertsOfRanks(
           placement, layer, options_.first_rank, options_.num_local_ranks)) {
    experts->push_back({layer, expert});
  }
}

void ExpertMover::Drop(std::vector<LayerExpert> experts) {
  if (experts.empty()) return;
  counters_.dropped_experts += experts.size();
  options_.drop(std::move(experts));
}

void ExpertMover::MoveTo(ExpertMovePhase to) {
  CHECK(IsLegalTransition(phase_, to));
  phase_ = to;
}

}  // namespace baton
