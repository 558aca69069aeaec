#include "server/balance_metrics.h"

#include <vector>

#include "server/edge/series_maker.h"

namespace baton {
namespace {

using prometheus::Counter;
using prometheus::Histogram;

// Of a ratio that is 1 at best.
const Histogram::BucketBoundaries& RatioBuckets() {
  static const auto& buckets = *new Histogram::BucketBoundaries{
      1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2, 3, 5, 10};
  return buckets;
}

}  // namespace

BalanceCounts operator-(const BalanceCounts& a, const BalanceCounts& b) {
  return {.balanced_plans = a.balanced_plans - b.balanced_plans,
          .moving_plans = a.moving_plans - b.moving_plans,
          .abandoned_plans = a.abandoned_plans - b.abandoned_plans,
          .skipped_plans = a.skipped_plans - b.skipped_plans,
          .moved_layers = a.moved_layers - b.moved_layers,
          .abandoned_layers = a.abandoned_layers - b.abandoned_layers,
          .loaded_experts = a.loaded_experts - b.loaded_experts,
          .failed_batches = a.failed_batches - b.failed_batches,
          .dropped_messages = a.dropped_messages - b.dropped_messages};
}

struct BalanceMetrics::Maker : SeriesMaker {
  using SeriesMaker::SeriesMaker;

  Counter& Plans(const char* outcome) const {
    return OneCounter(
        "baton_expert_plans_total",
        "Plans of where experts should be, by what became of them. "
        "Abandoned ones were moving before; skipped: the plan before "
        "was not over.",
        {{"outcome", outcome}});
  }
  Counter& Moves(const char* outcome) const {
    return OneCounter(
        "baton_expert_moves_total",
        "Layers that got, or were to get, other experts in their slots.",
        {{"outcome", outcome}});
  }
};

BalanceMetrics::BalanceMetrics(prometheus::Registry* registry,
                               const std::string& role)
    : BalanceMetrics(Maker{registry, role}) {}

BalanceMetrics::BalanceMetrics(const Maker& make)
    : step_ratio_(make.OneHistogram(
          "baton_expert_step_load_ratio",
          "Of a step: the rows of the fullest rank of this process, over those "
          "of the mean rank, summed over layers.",
          RatioBuckets())),
      layer_ratios_(make.Gauges(
          "baton_expert_load_ratio",
          "The fullest rank's rows over the mean rank's in the window of the "
          "newest plan, by layer; as it was, and as planned. Rows of a few "
          "steps are one number there, so single steps are less even.")),
      balanced_plans_(make.Plans("balanced")),
      moving_plans_(make.Plans("moving")),
      abandoned_plans_(make.Plans("abandoned")),
      skipped_plans_(make.Plans("skipped")),
      plan_seconds_(make.OneCounter("baton_expert_plan_seconds_total",
                                    "Time of planning which rank holds which "
                                    "experts, in the background.")),
      moved_layers_(make.Moves("moved")),
      abandoned_layers_(make.Moves("abandoned")),
      loaded_experts_(
          make.OneCounter("baton_expert_loads_total",
                          "Experts that this process loaded for a move.")),
      loaded_bytes_(make.OneCounter(
          "baton_expert_loaded_bytes_total",
          "Bytes of weights that this process loaded for moves of experts.")),
      failed_batches_(make.OneCounter(
          "baton_expert_load_failures_total",
          "Batches of expert moves of which this process could not load an "
          "expert; each ended its plan.")),
      dropped_messages_(
          make.OneCounter("baton_expert_dropped_messages_total",
                          "Messages of other processes about experts "
                          "that did nothing.")),
      version_(make.OneGauge(
          "baton_expert_placement_version",
          "Version of the experts' placement that steps have; 0: the first.")),
      age_(make.OneGauge(
          "baton_expert_placement_age_seconds",
          "Time since steps have their present placement of experts.")) {}

void BalanceMetrics::OnPlan(const ExpertPlan& plan, absl::Duration time) {
  plan_seconds_.Increment(absl::ToDoubleSeconds(time));
  const auto set = [this](const char* state, const std::vector<double>& of) {
    for (size_t layer = 0; layer < of.size(); ++layer) {
      layer_ratios_.Add({{"layer", std::to_string(layer)}, {"state", state}})
          .Set(of[layer]);
    }
  };
  set("present", plan.present_ratios);
  set("planned", plan.planned_ratios);
}

void BalanceMetrics::Add(const BalanceCounts& counts, uint64_t expert_bytes) {
  balanced_plans_.Increment(counts.balanced_plans);
  moving_plans_.Increment(counts.moving_plans);
  abandoned_plans_.Increment(counts.abandoned_plans);
  skipped_plans_.Increment(counts.skipped_plans);
  moved_layers_.Increment(counts.moved_layers);
  abandoned_layers_.Increment(counts.abandoned_layers);
  loaded_experts_.Increment(counts.loaded_experts);
  loaded_bytes_.Increment(static_cast<double>(counts.loaded_experts) *
                          static_cast<double>(expert_bytes));
  failed_batches_.Increment(counts.failed_batches);
  dropped_messages_.Increment(counts.dropped_messages);
}

void BalanceMetrics::OnPlacement(uint64_t version, absl::Time now) {
  version_.Set(static_cast<double>(version));
  since_nanoseconds_.store(absl::ToUnixNanos(now));
}

void BalanceMetrics::SetAge(absl::Time now) {
  const int64_t since = since_nanoseconds_.load();
  if (since == INT64_MIN) return;
  age_.Set(absl::ToDoubleSeconds(now - absl::FromUnixNanos(since)));
}

void BalanceMetrics::AddTo(v1::GroupLoad* load) const {
  const auto ratios = step_ratio_.Collect().histogram;
  load->set_expert_load_steps(ratios.sample_count);
  load->set_expert_load_ratio_sum(ratios.sample_sum);
}

}  // namespace baton
