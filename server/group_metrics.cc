#include "server/group_metrics.h"

#include "absl/time/time.h"
#include "server/edge/series_maker.h"

namespace baton {
namespace {

// Seconds: from what shared memory takes to a watchdog's patience.
prometheus::Histogram::BucketBoundaries WaitBuckets() {
  return {2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3,
          2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 1,    10};
}

}  // namespace

struct GroupMetrics::Maker : SeriesMaker {
  using SeriesMaker::SeriesMaker;

  Histogram& Wait(const char* name, const char* help) const {
    return OneHistogram(name, help, WaitBuckets());
  }
  Counter& Steps(const char* type, const char* cause) const {
    return OneCounter(
        "baton_group_steps_total",
        "Steps of the group by type; a prefill's cause: all ranks "
        "wanted it, any did at its turn, or nobody had a row to "
        "decode (unopposed).",
        {{"type", type}, {"cause", cause}});
  }
};

GroupMetrics::GroupMetrics(prometheus::Registry* registry,
                           const std::string& role, const Ranks& ranks)
    : GroupMetrics(Maker{registry, role}, ranks) {}

GroupMetrics::GroupMetrics(const Maker& make, const Ranks& ranks)
    : ranks_(ranks),
      decode_steps_(make.Steps("decode", "")),
      all_prefills_(make.Steps("prefill", "all")),
      any_prefills_(make.Steps("prefill", "any")),
      unopposed_prefills_(make.Steps("prefill", "unopposed")),
      prefill_fallbacks_(make.OneCounter(
          "baton_group_prefill_fallbacks_total",
          "Prefills voted for that no rank could do after all.")),
      empty_rank_steps_(
          make.OneCounter("baton_group_empty_rank_steps_total",
                          "Steps of a rank here without a row of its own.")),
      dropped_messages_(
          make.OneCounter("baton_group_dropped_messages_total",
                          "Messages of other processes that did nothing: late, "
                          "foreign or malformed.")),
      vote_wait_(make.Wait("baton_group_vote_wait_seconds",
                           "Of a step: from our ballot to the last one's "
                           "arrival, and so for a prefill's confirmations.")),
      exposed_wait_(make.Wait(
          "baton_group_exposed_vote_wait_seconds",
          "The part of a step's wait for the group's votes in which no device "
          "of this process had anything to do.")),
      epoch_(make.OneGauge(
          "baton_group_epoch",
          "Number of the group's newest epoch; 0: there was none.")),
      is_formed_(make.OneGauge(
          "baton_group_formed",
          "1: the group is in an epoch and takes steps; else 0.")),
      epochs_ended_(make.OneCounter(
          "baton_group_epochs_ended_total",
          "Epochs of the group that ended, for whatever reason.")),
      watchdog_firings_(make.OneCounter(
          "baton_group_watchdog_firings_total",
          "Epochs of the group that this process ended, since others kept it "
          "waiting for too long.")) {
  make.OneGauge("baton_group_ranks", "Ranks of the expert-parallel group.")
      .Set(ranks.group);
  make.OneGauge("baton_group_local_ranks",
                "Ranks of the expert-parallel group that this process hosts.")
      .Set(ranks.local);
}

void GroupMetrics::OnEpochStarted(EpochId epoch) {
  epoch_.Set(static_cast<double>(epoch.value()));
  is_formed_.Set(1);
}

void GroupMetrics::OnEpochEnded() {
  is_formed_.Set(0);
  epochs_ended_.Increment();
}

void GroupMetrics::OnStep(const GroupStepStats& stats) {
  if (stats.type == VotedStep::kDecode) decode_steps_.Increment();
  if (stats.type == VotedStep::kPrefill) PrefillsOf(stats.cause).Increment();
  if (stats.fell_back) prefill_fallbacks_.Increment();
  empty_rank_steps_.Increment(stats.empty_ranks);
  dropped_messages_.Increment(stats.dropped_messages);
  vote_wait_.Observe(absl::ToDoubleSeconds(stats.vote_wait));
  exposed_wait_.Observe(absl::ToDoubleSeconds(stats.exposed_wait));
}

v1::GroupLoad GroupMetrics::load() const {
  const auto count = [](const auto& series) {
    return static_cast<uint64_t>(series.Value());
  };
  const auto wait = vote_wait_.Collect().histogram;
  v1::GroupLoad load;
  load.set_epoch(count(epoch_));
  load.set_is_formed(is_formed_.Value() > 0);
  load.set_ep_size(ranks_.group);
  load.set_rank_offset(ranks_.first);
  load.set_decode_steps(count(decode_steps_));
  load.set_all_prefills(count(all_prefills_));
  load.set_any_prefills(count(any_prefills_));
  load.set_unopposed_prefills(count(unopposed_prefills_));
  load.set_prefill_fallbacks(count(prefill_fallbacks_));
  load.set_empty_rank_steps(count(empty_rank_steps_));
  load.set_dropped_messages(count(dropped_messages_));
  load.set_votes(wait.sample_count);
  load.set_vote_wait_seconds(wait.sample_sum);
  load.set_exposed_vote_wait_seconds(
      exposed_wait_.Collect().histogram.sample_sum);
  load.set_epochs_ended(count(epochs_ended_));
  load.set_watchdog_firings(count(watchdog_firings_));
  return load;
}

prometheus::Counter& GroupMetrics::PrefillsOf(PrefillCause cause) {
  switch (cause) {
    case PrefillCause::kAll:
      return all_prefills_;
    case PrefillCause::kAny:
      return any_prefills_;
    case PrefillCause::kUnopposed:
    case PrefillCause::kNone:
      break;
  }
  return unopposed_prefills_;
}

}  // namespace baton
