// Expert-parallel load balancing on /metrics. Every series carries the role.
#ifndef BATON_SERVER_BALANCE_METRICS_H_
#define BATON_SERVER_BALANCE_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "engine/expert_plan.h"
#include "proto/baton/v1/worker.pb.h"

namespace baton {

// Since an epoch's start, or since the last ones.
struct BalanceCounts {
  uint64_t balanced_plans = 0;  // Nothing was to be moved.
  uint64_t moving_plans = 0;
  uint64_t abandoned_plans = 0;
  uint64_t skipped_plans = 0;  // The one before was not over.
  uint64_t moved_layers = 0;
  uint64_t abandoned_layers = 0;
  uint64_t loaded_experts = 0;
  uint64_t failed_batches = 0;
  uint64_t dropped_messages = 0;

  friend bool operator==(const BalanceCounts&, const BalanceCounts&) = default;
};
BalanceCounts operator-(const BalanceCounts& a, const BalanceCounts& b);

// Thread-safe. The registry is borrowed and outlives it.
class BalanceMetrics {
 public:
  BalanceMetrics(prometheus::Registry* registry, const std::string& role);

  // At each step's commit: the local ranks' loads, as of RankLoadRatio.
  void OnStep(double ratio) { step_ratio_.Observe(ratio); }
  // The leader's.
  void OnPlan(const ExpertPlan& plan, absl::Duration time);
  void Add(const BalanceCounts& counts, uint64_t expert_bytes);
  // From now on, by the clock of SetAge, steps have this placement.
  void OnPlacement(uint64_t version, absl::Time now);
  // Before each scrape.
  void SetAge(absl::Time now);
  // What GetLoad tells of the experts.
  void AddTo(v1::GroupLoad* load) const;

 private:
  struct Maker;
  explicit BalanceMetrics(const Maker& make);

  prometheus::Histogram& step_ratio_;
  prometheus::Family<prometheus::Gauge>& layer_ratios_;
  prometheus::Counter& balanced_plans_;
  prometheus::Counter& moving_plans_;
  prometheus::Counter& abandoned_plans_;
  prometheus::Counter& skipped_plans_;
  prometheus::Counter& plan_seconds_;
  prometheus::Counter& moved_layers_;
  prometheus::Counter& abandoned_layers_;
  prometheus::Counter& loaded_experts_;
  prometheus::Counter& loaded_bytes_;
  prometheus::Counter& failed_batches_;
  prometheus::Counter& dropped_messages_;
  prometheus::Gauge& version_;
  prometheus::Gauge& age_;
  // Of the newest placement; none yet: infinitely old.
  std::atomic<int64_t> since_nanoseconds_{INT64_MIN};
};

}  // namespace baton

#endif  // BATON_SERVER_BALANCE_METRICS_H_
