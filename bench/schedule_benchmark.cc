// What planning a step costs: Scheduler::Schedule alone, sequences that decode,
// each step committed as if it drew what it may. Aim: 10 us + 0.1 us a
// sequence, p99 at most twice the mean.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/logging.h"
#include "engine/cache_spec.h"
#include "engine/kv_cache_manager.h"
#include "engine/scheduler.h"
#include "engine/scheduler_output.h"
#include "engine/sequence.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {
namespace {

constexpr int kSteps = 5000;
// Prompts differ in length, so that sequences do not all need a block at once.
constexpr uint32_t kMaxPromptTokens = CacheSpec::kBlockTokens;

// Other load on the machine is not in it. A call takes some 0.3 us.
double ThreadCpuSeconds() {
  timespec now;
  CHECK_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

class DecodingSequences {
 public:
  DecodingSequences(uint32_t count, uint32_t drafts)
      : options_(Options(count, drafts)),
        spec_{.groups = {{.name = "rows", .bytes_per_token = 1}}},
        pool_(count * CacheSpec::BlocksFor(kMaxTokens), spec_.block_bytes()),
        kv_(spec_, pool_.get()),
        scheduler_(options_, &kv_) {
    plan_.rows.reserve(count);
    for (uint32_t i = 0; i < count; ++i) {
      GenerationRequest request;
      request.id = {.router_nonce = 1, .counter = i};
      request.original_prompt_tokens = 1 + i * 37 % kMaxPromptTokens;
      request.token_ids.resize(request.original_prompt_tokens);
      sequences_.push_back(std::make_unique<SequenceMetadata>(
          std::move(request), nullptr, absl::UnixEpoch()));
      sequences_.back()->id = SequenceId(i + 1);
      sequences_.back()->max_total_tokens = kMaxTokens;
      scheduler_.Enqueue(sequences_.back().get());
    }
    scheduler_.Admit();
    while (plan_.type == StepType::kPrefill || step_ == StepId(0)) Step();
  }
  ~DecodingSequences() {
    for (const auto& sequence : sequences_) {
      scheduler_.Remove(sequence.get());
      kv_.Release(&sequence->kv);
    }
  }

  // CPU seconds of the planning.
  double Step() {
    const double start = ThreadCpuSeconds();
    scheduler_.Schedule(++step_, &plan_);
    const double end = ThreadCpuSeconds();
    CHECK(!plan_.empty());
    kv_.StepLaunched(step_);
    for (const ScheduledRows& rows : plan_.rows) Commit(rows);
    kv_.StepDone(step_);
    if (plan_.type == StepType::kDecode) {
      scheduler_.planner()->Observe(plan_.num_rows,
                                    absl::Microseconds(100 + plan_.num_rows));
    }
    return end - start;
  }
  size_t num_planned() const { return plan_.rows.size(); }

 private:
  static constexpr uint32_t kMaxTokens = kMaxPromptTokens + 2 * kSteps;

  static EngineOptions Options(uint32_t count, uint32_t drafts) {
    EngineOptions options;
    options.max_running_requests = count;
    options.decode_steps_per_prefill = 0;
    options.num_draft_tokens = drafts;
    if (drafts > 0) {
      for (uint32_t rows = 1; rows <= 8192; rows *= 2) {
        options.step_curve.push_back({rows, absl::Microseconds(100 + rows)});
      }
    }
    return options;
  }

  // One token drawn, the drafts of the step before refused.
  void Commit(const ScheduledRows& rows) {
    SequenceMetadata* sequence = rows.sequence;
    const bool from_host = rows.source == RowSource::kHost;
    sequence->inflight_rows -= rows.num_rows;
    sequence->computed_rows += from_host ? rows.num_rows : 1;
    if (!rows.draws) return;
    sequence->total_inflight_tokens -= from_host ? 1 : rows.num_rows;
    --sequence->inflight_draws;
    sequence->draft_rates.num_drafts = rows.num_drafts;
    for (uint32_t j = 0; j < rows.num_drafts; ++j) {
      sequence->draft_rates.confidence[j] =
          0.3f + 0.07f * static_cast<float>((sequence->id.value() + j) % 10);
    }
    if (sequence->phase() == SequencePhase::kPrefilling) {
      kv_.Transition(&sequence->kv, KvRangeState::kOwned);
      sequence->SetPhase(SequencePhase::kDecoding);
    }
    sequence->tokens.push_back(7);
  }

  const EngineOptions options_;
  const CacheSpec spec_;
  HeapKvPool pool_;
  KvCacheManager kv_;
  Scheduler scheduler_;
  std::vector<std::unique_ptr<SequenceMetadata>> sequences_;
  SchedulerOutput plan_;
  StepId step_;
};

// Args: sequences, drafts.
void BM_Schedule(benchmark::State& state) {
  const auto count = static_cast<uint32_t>(state.range(0));
  DecodingSequences sequences(count, static_cast<uint32_t>(state.range(1)));
  std::vector<double> times;
  times.reserve(kSteps);
  for (auto _ : state) {
    times.push_back(sequences.Step());
    state.SetIterationTime(times.back());
    CHECK_EQ(sequences.num_planned(), count);
  }
  std::sort(times.begin(), times.end());
  double sum = 0;
  for (const double time : times) sum += time;
  const double mean = sum / static_cast<double>(times.size());
  const double p99 = times[times.size() * 99 / 100];
  state.counters["p50_us"] = times[times.size() / 2] * 1e6;
  state.counters["p99_us"] = p99 * 1e6;
  state.counters["p99_over_mean"] = p99 / mean;
  state.counters["aim_us"] = 10 + 0.1 * count;
}
BENCHMARK(BM_Schedule)
    ->ArgNames({"sequences", "drafts"})
    ->ArgsProduct({{1, 8, 64, 256, 1024}, {0, kMaxDraftTokens}})
    ->Iterations(kSteps)
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime();

}  // namespace
}  // namespace baton

BENCHMARK_MAIN();
