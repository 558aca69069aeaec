// A process's part in its expert-parallel group, on /metrics and for GetLoad.
// Every series carries the role.
#ifndef BATON_SERVER_GROUP_METRICS_H_
#define BATON_SERVER_GROUP_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <string>

#include "comm/step_ids.h"
#include "comm/step_vote.h"
#include "engine/group_stepper.h"
#include "proto/baton/v1/worker.pb.h"

namespace baton {

// Thread-safe. The registry is borrowed and outlives it.
class GroupMetrics {
 public:
  struct Ranks {
    uint32_t group = 1;
    uint32_t first = 0;  // Of those here, in the group.
    uint32_t local = 1;
  };
  GroupMetrics(prometheus::Registry* registry, const std::string& role,
               const Ranks& ranks);

  // Steps are taken from now on; until OnEpochEnded.
  void OnEpochStarted(EpochId epoch);
  void OnEpochEnded();
  // We ended it, since others kept us waiting for too long.
  void OnWatchdog() { watchdog_firings_.Increment(); }
  // GroupStepperOptions::observer. Allocates nothing.
  void OnStep(const GroupStepStats& stats);
  // That no stepper was given.
  void OnDroppedMessage() { dropped_messages_.Increment(); }

  // What GetLoad tells, but for the experts.
  v1::GroupLoad load() const;

 private:
  using Counter = prometheus::Counter;
  using Gauge = prometheus::Gauge;
  using Histogram = prometheus::Histogram;
  struct Maker;
  GroupMetrics(const Maker& make, const Ranks& ranks);
  Counter& PrefillsOf(PrefillCause cause);

  const Ranks ranks_;
  Counter& decode_steps_;
  Counter& all_prefills_;
  Counter& any_prefills_;
  Counter& unopposed_prefills_;
  Counter& prefill_fallbacks_;
  Counter& empty_rank_steps_;
  Counter& dropped_messages_;
  Histogram& vote_wait_;
  Histogram& exposed_wait_;
  Gauge& epoch_;
  Gauge& is_formed_;
  Counter& epochs_ended_;
  Counter& watchdog_firings_;
};

}  // namespace baton

#endif  // BATON_SERVER_GROUP_METRICS_H_
