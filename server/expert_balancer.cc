#include "server/expert_balancer.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/logging.h"
#include "base/status_macros.h"

namespace baton {
namespace {

BalanceCounts CountsOf(const ExpertRebalance& rebalance) {
  const ExpertRebalanceCounters& group = rebalance.counters();
  const ExpertMoverCounters& moves = rebalance.mover().counters();
  return {.balanced_plans = group.balanced_plans,
          .moving_plans = group.plans,
          .abandoned_plans = group.abandoned_plans,
          .skipped_plans = group.skipped_rounds,
          .moved_layers = moves.moved_layers,
          .abandoned_layers = moves.abandoned_layers,
          .loaded_experts = moves.loaded_experts,
          .failed_batches = moves.failed_batches,
          .dropped_messages = group.dropped_messages};
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double Max(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

}  // namespace

ExpertBalancer::ExpertBalancer(const ExpertBalancerOptions& options,
                               const Clock* clock, BalanceMetrics* metrics)
    : options_(options),
      clock_(clock),
      metrics_(metrics),
      rebalance_(RebalanceOptions()),
      ratio_(options.rebalance.mover.layout.num_layers,
             options.rebalance.mover.num_local_ranks) {
  const std::vector<LayerExpert> first =
      rebalance_.mover().LocalExperts(rebalance_.mover().tables().placement());
  in_memory_.insert(first.begin(), first.end());
  if (metrics_ != nullptr) metrics_->OnPlacement(0, clock_->Now());
}

ExpertBalancer::~ExpertBalancer() = default;

// The thread runs what is asked for in order, so what is dropped is gone before
// the next is loaded.
ExpertRebalanceOptions ExpertBalancer::RebalanceOptions() {
  ExpertRebalanceOptions options = options_.rebalance;
  options.plan = [this](ExpertPlanJob job) {
    thread_.Run([this, job = std::move(job)] { Tell(Plan(job)); });
  };
  options.mover.load = [this](std::vector<LayerExpert> experts) {
    thread_.Run([this, experts = std::move(experts)] {
      Tell(Loaded{.ok = LoadAll(experts)});
    });
  };
  options.mover.drop = [this](std::vector<LayerExpert> experts) {
    thread_.Run([this, experts = std::move(experts)] { DropAll(experts); });
  };
  return options;
}

void ExpertBalancer::Tell(Done done) {
  done_.Push(std::move(done));
  options_.wake();
}

bool ExpertBalancer::Turn() {
  done_.Drain(&drained_);
  for (Done& done : drained_) {
    std::visit([this](auto& what) { On(std::move(what)); }, done);
  }
  if (!drained_.empty()) Report();
  return !drained_.empty();
}

void ExpertBalancer::On(Planned planned) {
  const ExpertPlan& plan = planned.plan;
  LOG(INFO) << "expert plan " << rebalance_.mover().newest_plan() + 1
            << " moved_layers " << plan.moves.size() << " moved_slots "
            << plan.moved_slots() << " mean_ratio " << Mean(plan.present_ratios)
            << " planned " << Mean(plan.planned_ratios) << " max_ratio "
            << Max(plan.present_ratios) << " planned "
            << Max(plan.planned_ratios) << " unplanned_layers "
            << plan.unplanned_layers << " seconds "
            << absl::ToDoubleSeconds(planned.time);
  if (metrics_ != nullptr) metrics_->OnPlan(plan, planned.time);
  rebalance_.OnPlanned(std::move(planned.plan));
}

bool ExpertBalancer::OnMessage(uint32_t from, std::string_view bytes) {
  const bool is_good = rebalance_.OnMessage(from, bytes);
  Report();
  return is_good;
}

std::span<const ExpertSlots> ExpertBalancer::SlotsOf(
    const StepDecision& decision) {
  const std::span<const ExpertSlots> slots =
      rebalance_.OnStep(decision.placement_version);
  Report();
  return slots;
}

void ExpertBalancer::OnStepRows(uint32_t local_rank,
                                std::span<const uint32_t> rows) {
  rebalance_.OnStepRows(local_rank, rows);
  const std::optional<double> ratio = ratio_.Add(local_rank, rows);
  if (metrics_ != nullptr && ratio.has_value()) metrics_->OnStep(*ratio);
  Report();
}

void ExpertBalancer::Report() {
  const uint64_t plan = rebalance_.mover().closed_plan();
  const uint64_t version = rebalance_.mover().tables().version();
  const BalanceCounts counts = CountsOf(rebalance_);
  if (plan != reported_plan_) {
    LOG(INFO) << "expert plan " << plan << " over placement " << version
              << " loaded_experts " << counts.loaded_experts
              << " abandoned_layers " << counts.abandoned_layers;
    reported_plan_ = plan;
  }
  if (metrics_ != nullptr && version != reported_version_) {
    metrics_->OnPlacement(version, clock_->Now());
  }
  reported_version_ = version;
  if (counts == reported_) return;
  if (metrics_ != nullptr) {
    metrics_->Add(counts - reported_, options_.expert_bytes);
  }
  reported_ = counts;
}

ExpertBalancer::Planned ExpertBalancer::Plan(const ExpertPlanJob& job) const {
  const absl::Time start = clock_->Now();
  const auto time_left = [this, start] {
    return !thread_.stopping() &&
           clock_->Now() - start < options_.max_plan_time;
  };
  ExpertPlan plan = PlanExperts(job, options_.eplb, time_left);
  return {.plan = std::move(plan), .time = clock_->Now() - start};
}

bool ExpertBalancer::LoadAll(const std::vector<LayerExpert>& experts) {
  for (size_t i = 0; i < experts.size(); ++i) {
    if (thread_.stopping()) return false;
    const LayerExpert& e = experts[i];
    const absl::Status status = options_.load_expert(e.layer, e.expert);
    if (status.ok()) {
      in_memory_.insert(e);
      continue;
    }
    LOG(WARNING) << "expert " << e.expert << " layer " << e.layer
                 << " not loaded: " << status.message();
    DropAll({experts.begin(), experts.begin() + static_cast<ptrdiff_t>(i)});
    return false;
  }
  return true;
}

void ExpertBalancer::DropAll(const std::vector<LayerExpert>& experts) {
  for (const LayerExpert& e : experts) {
    options_.drop_expert(e.layer, e.expert);
    in_memory_.erase(e);
  }
}

absl::Status ExpertBalancer::End() {
  thread_.Stop();
  const std::vector<LayerExpert> first = rebalance_.mover().LocalExperts(
      ExpertPlacement(options_.rebalance.mover.layout));
  std::vector<LayerExpert> unused, missing;
  std::set_difference(in_memory_.begin(), in_memory_.end(), first.begin(),
                      first.end(), std::back_inserter(unused));
  std::set_difference(first.begin(), first.end(), in_memory_.begin(),
                      in_memory_.end(), std::back_inserter(missing));
  DropAll(unused);
  for (const LayerExpert& e : missing) {
    RETURN_IF_ERROR(options_.load_expert(e.layer, e.expert));
    in_memory_.insert(e);
  }
  return absl::OkStatus();
}

}  // namespace baton
