#include "engine/expert_rebalance.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"

namespace baton {
namespace {

constexpr uint32_t kLeader = 0;
constexpr uint32_t kLeastStepsPerRow = 16;

}  // namespace

uint32_t StepsPerLoadRow(uint32_t num_experts, uint32_t window_steps) {
  const size_t max_rows = kMaxRebalanceValues / num_experts;
  CHECK_GE(max_rows, 2u) << num_experts << " experts";
  // The window has a row more, for the newest steps.
  const auto least =
      static_cast<uint32_t>((window_steps + max_rows - 2) / (max_rows - 1));
  return std::max(kLeastStepsPerRow, least);
}

ExpertRebalance::ExpertRebalance(const ExpertRebalanceOptions& options)
    : options_(options),
      interval_(std::max(options.interval,
                         options.mover.layout.num_layers + kLeastPause)),
      mover_(options.mover),
      ranks_done_(options.mover.num_local_ranks),
      collector_(options.mover.layout, options.num_processes) {
  const ExpertLayout& layout = options.mover.layout;
  CHECK_LT(options.process, options.num_processes);
  CHECK_GE(options.max_layers_in_flight, 1u);
  CHECK_LE(layout.num_slots(), kMaxRebalanceValues);
  if (options.interval == 0) return;
  window_.emplace(ExpertLoadWindowOptions{
      .num_layers = layout.num_layers,
      .num_experts = layout.num_experts,
      .num_steps = options.window_steps,
      .steps_per_row =
          StepsPerLoadRow(layout.num_experts, options.window_steps)});
}

std::span<const ExpertSlots> ExpertRebalance::OnStep(uint64_t version) {
  in_flight_.push_back(mover_.OnStep(++num_launched_, version));
  return in_flight_.back()->slots();
}

// A rank that is ahead of the others adds its step's rows to the oldest open
// one, a few steps early: a row of the window is the sum of many.
void ExpertRebalance::OnStepRows(uint32_t local_rank,
                                 std::span<const uint32_t> rows) {
  const uint64_t step = ++ranks_done_.at(local_rank);
  CHECK_LE(step, num_launched_) << "of an epoch before";
  if (window_.has_value() && !rows.empty()) {
    CountRows(in_flight_[step - num_done_ - 1]->placement(), local_rank, rows);
  }
  while (*std::min_element(ranks_done_.begin(), ranks_done_.end()) >
         num_done_) {
    OnStepDone();
  }
}

void ExpertRebalance::CountRows(const ExpertPlacement& placement,
                                uint32_t local_rank,
                                std::span<const uint32_t> rows) {
  const uint32_t per_rank = placement.layout().slots_per_rank;
  const uint32_t rank = options_.mover.first_rank + local_rank;
  CHECK_EQ(rows.size(), size_t{placement.layout().num_layers} * per_rank);
  for (uint32_t layer = 0; layer < placement.layout().num_layers; ++layer) {
    window_->AddSlots(
        layer,
        placement.experts(layer).subspan(size_t{rank} * per_rank, per_rank),
        rows.subspan(size_t{layer} * per_rank, per_rank));
  }
}

void ExpertRebalance::OnStepDone() {
  ++num_done_;
  in_flight_.pop_front();
  if (window_.has_value()) {
    window_->EndStep();
    MaybeTellLoads();
  }
  mover_.OnStepsDone(num_done_);
}

// Layer l of round r, from 1: behind step first + (r - 1) * interval + l.
void ExpertRebalance::MaybeTellLoads() {
  const uint64_t first = std::max(1u, interval_ / 4);
  if (num_done_ < first) return;
  const uint64_t layer = (num_done_ - first) % interval_;
  if (layer >= options_.mover.layout.num_layers) return;
  RebalanceMessage message = {.kind = RebalanceKind::kLoads,
                              .epoch = options_.epoch,
                              .round = (num_done_ - first) / interval_ + 1,
                              .plan = mover_.closed_plan(),
                              .layer = static_cast<uint32_t>(layer)};
  const ExpertLoads loads = window_->Loads(message.layer);
  message.values.reserve(size_t{loads.num_rows()} * loads.num_experts());
  for (uint32_t row = 0; row < loads.num_rows(); ++row) {
    const std::span<const uint32_t> counts = loads.row(row);
    message.values.insert(message.values.end(), counts.begin(), counts.end());
  }
  TellLeader(message);
}

void ExpertRebalance::TellLeader(const RebalanceMessage& message) {
  if (!leads()) return options_.send(kLeader, EncodeRebalance(message));
  counters_.dropped_messages += Handle(kLeader, message) ? 0 : 1;
}

void ExpertRebalance::TellAll(const RebalanceMessage& message) {
  const std::string bytes = EncodeRebalance(message);
  for (uint32_t p = 1; p < options_.num_processes; ++p) {
    options_.send(p, bytes);
  }
  CHECK(Handle(kLeader, message));
}

bool ExpertRebalance::OnMessage(uint32_t from, std::string_view bytes) {
  const std::optional<RebalanceMessage> message = DecodeRebalance(bytes);
  const bool is_good = message.has_value() &&
                       message->epoch == options_.epoch &&
                       from != options_.process && Handle(from, *message);
  counters_.dropped_messages += is_good ? 0 : 1;
  return is_good;
}

bool ExpertRebalance::Handle(uint32_t from, const RebalanceMessage& message) {
  switch (message.kind) {
    case RebalanceKind::kLoads:
      return leads() && window_.has_value() && CollectLoads(from, message);
    case RebalanceKind::kMove:
      return from == kLeader && mover_.AddMove(message);
    case RebalanceKind::kFailed:
      return leads() && AbandonPlan(message);
    case RebalanceKind::kAbandon:
      return from == kLeader && mover_.Abandon(message);
  }
  return false;
}

bool ExpertRebalance::CollectLoads(uint32_t from,
                                   const RebalanceMessage& message) {
  if (!collector_.Add(from, message)) return false;
  if (!collector_.complete()) return true;
  ++counters_.rounds;
  const bool is_over = collector_.closed_plan() == mover_.newest_plan();
  std::vector<std::vector<uint32_t>> loads = collector_.Take();
  if (planning_ || !is_over) {
    ++counters_.skipped_rounds;
    return true;
  }
  planning_ = true;
  options_.plan(
      {.present = mover_.tables().placement(), .loads = std::move(loads)});
  return true;
}

void ExpertRebalance::OnPlanned(ExpertPlan plan) {
  CHECK(std::exchange(planning_, false));
  if (plan.moves.empty()) {
    ++counters_.balanced_plans;
    return;
  }
  ++counters_.plans;
  const uint64_t first = mover_.newest_version() + 1;
  const uint64_t number = mover_.newest_plan() + 1;
  const uint64_t count = plan.moves.size();
  const uint64_t per_batch = options_.max_layers_in_flight;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t batch_end = std::min(count, (i / per_batch + 1) * per_batch);
    TellAll({.kind = RebalanceKind::kMove,
             .epoch = options_.epoch,
             .plan = number,
             .placement = first + i,
             .batch_end = first + batch_end - 1,
             .plan_end = first + count - 1,
             .layer = plan.moves[i].layer,
             .values = std::move(plan.moves[i].experts)});
  }
}

void ExpertRebalance::OnLoaded(bool ok) {
  if (mover_.OnLoaded(ok)) return;
  TellLeader({.kind = RebalanceKind::kFailed,
              .epoch = options_.epoch,
              .plan = mover_.newest_plan(),
              .placement = mover_.tables().version()});
}

// Of those that fail with the same batch the first is heard.
bool ExpertRebalance::AbandonPlan(const RebalanceMessage& failed) {
  if (failed.plan != mover_.newest_plan()) return false;
  if (failed.plan == abandoned_plan_) return true;
  if (!mover_.MayAbandon(failed)) return false;
  abandoned_plan_ = failed.plan;
  ++counters_.abandoned_plans;
  RebalanceMessage abandon = failed;
  abandon.kind = RebalanceKind::kAbandon;
  TellAll(abandon);
  return true;
}

}  // namespace baton
