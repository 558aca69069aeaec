// The engine's steps on /metrics. Every series carries the role.
#ifndef BATON_SERVER_STEP_METRICS_H_
#define BATON_SERVER_STEP_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include <array>
#include <string>

#include "engine/engine_options.h"

namespace baton {

// The engine's thread. The registry is borrowed and outlives it.
class StepMetrics {
 public:
  StepMetrics(prometheus::Registry* registry, const std::string& role);

  // At each step's commit. Allocates nothing.
  void OnStep(const StepStats& stats);

 private:
  using Counter = prometheus::Counter;
  struct Maker;
  explicit StepMetrics(const Maker& make);

  Counter& prefill_steps_;
  Counter& decode_steps_;
  Counter& preemptions_;
  Counter& prefill_seconds_;
  Counter& decode_seconds_;
  Counter& idle_seconds_;
  Counter& schedule_seconds_;
  Counter& commit_seconds_;
  Counter& useful_rows_;
  Counter& wasted_rows_;
  Counter& draws_;
  Counter& tokens_;
  Counter& drafts_proposed_;
  // By place in the chain.
  std::array<Counter*, kMaxDraftTokens> drafts_verified_;
  std::array<Counter*, kMaxDraftTokens> drafts_accepted_;
};

}  // namespace baton

#endif  // BATON_SERVER_STEP_METRICS_H_
