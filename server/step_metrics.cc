#include "server/step_metrics.h"

#include "server/edge/series_maker.h"

namespace baton {

struct StepMetrics::Maker : SeriesMaker {
  using SeriesMaker::SeriesMaker;

  Counter& Steps(const char* type) const {
    return OneCounter("baton_steps_total", "Steps of the engine by type.",
                      {{"type", type}});
  }
  Counter& DeviceSeconds(const char* state) const {
    return OneCounter(
        "baton_device_seconds_total",
        "Time of the device by what it did; idle: between two steps, "
        "while there was work.",
        {{"state", state}});
  }
  Counter& EngineSeconds(const char* part) const {
    return OneCounter(
        "baton_engine_seconds_total",
        "Time of the engine's thread in steps, by part of its loop.",
        {{"part", part}});
  }
  Counter& Rows(const char* use) const {
    return OneCounter(
        "baton_step_rows_total",
        "Rows computed; wasted: of refused drafts, and of sequences that "
        "had ended.",
        {{"use", use}});
  }
  std::array<Counter*, kMaxDraftTokens> ByPosition(const char* name,
                                                   const char* help) const {
    std::array<Counter*, kMaxDraftTokens> counters;
    for (uint32_t i = 0; i < kMaxDraftTokens; ++i) {
      counters[i] =
          &OneCounter(name, help, {{"position", std::to_string(i + 1)}});
    }
    return counters;
  }
};

StepMetrics::StepMetrics(prometheus::Registry* registry,
                         const std::string& role)
    : StepMetrics(Maker{registry, role}) {}

StepMetrics::StepMetrics(const Maker& make)
    : prefill_steps_(make.Steps("prefill")),
      decode_steps_(make.Steps("decode")),
      preemptions_(make.OneCounter("baton_preemptions_total",
                                   "Sequences taken out, to be recomputed.")),
      prefill_seconds_(make.DeviceSeconds("prefill")),
      decode_seconds_(make.DeviceSeconds("decode")),
      idle_seconds_(make.DeviceSeconds("idle")),
      schedule_seconds_(make.EngineSeconds("schedule")),
      commit_seconds_(make.EngineSeconds("commit")),
      useful_rows_(make.Rows("useful")),
      wasted_rows_(make.Rows("wasted")),
      draws_(make.OneCounter(
          "baton_draws_total",
          "Turns of a sequence that drew; drawn tokens over draws "
          "is the mean accepted length.")),
      tokens_(make.OneCounter("baton_drawn_tokens_total",
                              "Tokens drawn and kept.")),
      drafts_proposed_(
          make.OneCounter("baton_drafts_proposed_total", "Tokens drafted.")),
      drafts_verified_(make.ByPosition(
          "baton_drafts_verified_total",
          "Draft tokens that steps verified, by place in their chain.")),
      drafts_accepted_(make.ByPosition(
          "baton_drafts_accepted_total",
          "Draft tokens that proved right, by place in their chain.")) {}

void StepMetrics::OnStep(const StepStats& stats) {
  (stats.prefill ? prefill_steps_ : decode_steps_).Increment();
  (stats.prefill ? prefill_seconds_ : decode_seconds_)
      .Increment(absl::ToDoubleSeconds(stats.device_time));
  idle_seconds_.Increment(absl::ToDoubleSeconds(stats.device_idle));
  schedule_seconds_.Increment(absl::ToDoubleSeconds(stats.schedule_time));
  commit_seconds_.Increment(absl::ToDoubleSeconds(stats.commit_time));
  useful_rows_.Increment(stats.rows - stats.wasted_rows);
  wasted_rows_.Increment(stats.wasted_rows);
  preemptions_.Increment(stats.preemptions);
  draws_.Increment(stats.draws);
  tokens_.Increment(stats.tokens);
  drafts_proposed_.Increment(stats.drafts_made);
  for (uint32_t i = 0; i < kMaxDraftTokens; ++i) {
    drafts_verified_[i]->Increment(stats.drafts_verified[i]);
    drafts_accepted_[i]->Increment(stats.drafts_accepted[i]);
  }
}

}  // namespace baton
