// What an expert-parallel group takes for a step on this host, and where that
// goes: votes, and CPU time by part; with --eplb_interval also what a rebalance
// does to the time between tokens. Prints rows of tables, of the round with the
// shortest steps; of all rounds, what is about rebalances.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "bench/group_run.h"
#include "bench/host_members.h"
#include "bench/statistics.h"
#include "comm/group_barrier.h"
#include "server/edge/config.h"

namespace baton {
namespace {

struct Options {
  GroupRunOptions run;
  uint32_t rounds = 3;
};

void AddFlags(Flags& flags, Options* o) {
  GroupRunOptions& run = o->run;
  flags.Add(&run.model,
            {.name = "model", .help = "The model's folder.", .required = true});
  flags.Add(&run.ep_size,
            {.name = "ep_size", .help = "Ranks.", .min = 2, .max = 256});
  flags.Add(&run.processes, {.name = "processes",
                             .help = "That share them evenly.",
                             .min = 1,
                             .max = 64});
  flags.AddChoice(&run.transport,
                  {{"auto", UcxMode::kAuto},
                   {"shm", UcxMode::kShm},
                   {"tcp", UcxMode::kTcp}},
                  {.name = "transport", .help = "As batond's."});
  flags.Add(&run.batch, {.name = "batch",
                         .help = "Sequences of each rank.",
                         .min = 1,
                         .max = 1024});
  flags.Add(&run.max_tokens, {.name = "max_tokens",
                              .help = "Output of each sequence.",
                              .min = 40,
                              .max = 4000});
  flags.Add(
      &run.pipeline_depth,
      {.name = "pipeline_depth", .help = "As batond's.", .min = 1, .max = 3});
  flags.Add(&run.num_redundant_experts,
            {.name = "num_redundant_experts", .help = "As batond's."});
  flags.Add(&run.eplb_interval,
            {.name = "eplb_interval", .help = "As batond's."});
  flags.Add(&run.eplb_window,
            {.name = "eplb_window", .help = "As batond's.", .min = 1});
  flags.Add(&o->rounds, {.name = "rounds", .help = "Runs.", .min = 1});
}

// Decode steps with a row on every rank. All processes take the same steps, so
// an index means the same step to all.
struct Window {
  size_t first = 0;
  size_t last = 0;
  double size() const { return static_cast<double>(last - first); }
};

bool IsFull(const GroupRunOptions& options, const GroupRunRecords& records,
            size_t step) {
  for (uint32_t p = 0; p < options.processes; ++p) {
    const GroupStepRecord& record = records.steps(p)[step];
    if (record.type != VotedStep::kDecode || record.empty_ranks > 0) {
      return false;
    }
  }
  return true;
}

// Around the middle of the run, but for an eighth at its start.
Window WindowOf(const GroupRunOptions& options,
                const GroupRunRecords& records) {
  const std::span<const GroupStepRecord> steps = records.steps(0);
  size_t num = 0;
  while (num < steps.size() && steps[num].type != VotedStep::kNone) ++num;
  Window window = {.first = num / 2, .last = num / 2};
  while (IsFull(options, records, window.last)) ++window.last;
  while (IsFull(options, records, window.first - 1)) --window.first;
  --window.last;
  window.first += (window.last - window.first) / 8;
  CHECK_LT(window.first, window.last) << "of " << num << " steps";
  return window;
}

// Of a window, by step.
struct StepFigures {
  double mean = 0;  // Milliseconds, as are the next.
  double p50 = 0;
  double p99 = 0;
  std::vector<double> vote_waits;  // Microseconds, of all processes.
  std::vector<double> exposed_waits;
  double device_idle = 0;  // Microseconds of a rank.
  // CPU milliseconds of all processes.
  double cpu = 0;
  double engine = 0;
  double commit = 0;
  double launch = 0;
  double device = 0;
  double exchange = 0;
  double experts = 0;
  double barriers = 0;  // Their number.
};

void AddProcess(std::span<const GroupStepRecord> steps, const Window& window,
                StepFigures* all) {
  const GroupStepRecord& a = steps[window.first];
  const GroupStepRecord& b = steps[window.last];
  const double each = 1e3 / window.size();
  all->device_idle += (b.device_idle - a.device_idle) * each;
  all->cpu += (b.process_cpu - a.process_cpu) * each;
  all->engine += (b.engine_cpu - a.engine_cpu) * each;
  all->commit += (b.commit_cpu - a.commit_cpu) * each;
  all->launch += (b.launch_cpu - a.launch_cpu) * each;
  all->device += (b.device_cpu - a.device_cpu) * each;
  all->exchange += (b.exchange_cpu - a.exchange_cpu) * each;
  all->experts += (b.experts_cpu - a.experts_cpu) * each;
  for (size_t i = window.first; i < window.last; ++i) {
    all->vote_waits.push_back(steps[i].vote_wait * 1e6);
    all->exposed_waits.push_back(steps[i].exposed_wait * 1e6);
  }
}

StepFigures Summarise(const GroupRunOptions& options,
                      const GroupRunRecords& records) {
  const std::span<const GroupStepRecord> steps = records.steps(0);
  const Window window = WindowOf(options, records);
  StepFigures all;
  all.barriers = (steps[window.last].barriers - steps[window.first].barriers) /
                 window.size();
  std::vector<double> times;
  for (size_t i = window.first; i < window.last; ++i) {
    times.push_back((steps[i + 1].time - steps[i].time) * 1e3);
  }
  all.mean = Mean(times);
  all.p50 = Quantile(times, 0.5);
  all.p99 = Quantile(times, 0.99);
  for (uint32_t p = 0; p < options.processes; ++p) {
    AddProcess(records.steps(p), window, &all);
  }
  all.device_idle *= 1e3 / options.ep_size;
  return all;
}

// CPU milliseconds of all its members for a barrier, of nothing but that.
double BarrierCpu(uint32_t num_members) {
  constexpr int kRounds = 500;
  GroupBarrierState state = {};
  std::vector<GroupBarrierArrivals> arrivals(num_members);
  GroupBarrier barrier({}, &state, arrivals);
  const auto cpu = [] {
    rusage usage;
    CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return absl::DurationFromTimeval(usage.ru_utime) +
           absl::DurationFromTimeval(usage.ru_stime);
  };
  const absl::Duration start = cpu();
  RunMembers(MemberKind::kThread, static_cast<int>(num_members),
             [&barrier](int member) {
               for (int i = 0; i < kRounds; ++i) CHECK(barrier.Arrive(member));
             });
  return absl::ToDoubleMilliseconds(cpu() - start) / kRounds;
}

std::string NameOf(const GroupRunOptions& options) {
  const char* const ways[] = {"auto", "shm", "tcp"};
  return std::to_string(options.ep_size) + " | " +
         std::to_string(options.processes) + " | " +
         (options.processes == 1 ? "-"
                                 : ways[static_cast<int>(options.transport)]) +
         " | " + std::to_string(options.batch);
}

void PrintVotes(const std::string& name, const StepFigures& f) {
  std::printf(
      "| ranks | processes | by | batch | step ms: mean, p50, p99 | vote wait "
      "us: p50, p99 | of it exposed us: mean, p50, p99 | of the step %% | "
      "device idle a rank us |\n"
      "| %s | %.2f, %.2f, %.2f | %.0f, %.0f | %.1f, %.1f, %.1f | %.3f | %.0f "
      "|\n",
      name.c_str(), f.mean, f.p50, f.p99, Quantile(f.vote_waits, 0.5),
      Quantile(f.vote_waits, 0.99), Mean(f.exposed_waits),
      Quantile(f.exposed_waits, 0.5), Quantile(f.exposed_waits, 0.99),
      Mean(f.exposed_waits) / f.mean / 10, f.device_idle);
}

void PrintParts(const std::string& name, const StepFigures& f,
                double barriers) {
  const double cores = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  std::printf(
      "| ranks | processes | by | batch | step ms | CPU ms: attention and rest "
      "| experts | copies | barriers | engine: commit, launch, rest | other "
      "threads | of %.0f cores %% |\n"
      "| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f, %.2f, %.2f | %.2f | "
      "%.0f |\n",
      cores, name.c_str(), f.mean, f.device - f.exchange - f.experts, f.experts,
      f.exchange - barriers, barriers, f.commit, f.launch,
      f.engine - f.commit - f.launch, f.cpu - f.device - f.engine,
      100 * f.cpu / f.mean / cores);
}

// From the step at whose end loads are told to the first one with all experts
// where the plan wants them.
struct Rebalance {
  double start = 0;
  double end = 0;
  // Nothing was moved, or not yet.
  bool is_empty = true;
};

// The rebalances that begin in the window: one each `interval` steps, the first
// behind a quarter of that.
std::vector<Rebalance> RebalancesIn(std::span<const GroupStepRecord> steps,
                                    const Window& window, size_t interval) {
  std::vector<Rebalance> all;
  for (size_t start = interval / 4; start + interval < window.last;
       start += interval) {
    if (start < window.first) continue;
    Rebalance rebalance = {.start = steps[start - 1].time};
    for (size_t i = start; i < start + interval; ++i) {
      if (steps[i].placement_version != steps[i - 1].placement_version) {
        rebalance.end = steps[i + 1].time;
        rebalance.is_empty = false;
      }
    }
    all.push_back(rebalance);
  }
  return all;
}

// Times between tokens, in milliseconds.
struct TokenGaps {
  int num_rebalances = 0;  // That moved experts.
  std::vector<double> before;
  std::vector<double> during;
};

void AddGaps(const GroupRunOptions& options, const GroupRunRecords& records,
             TokenGaps* gaps) {
  const std::span<const GroupStepRecord> steps = records.steps(0);
  const std::vector<Rebalance> rebalances =
      RebalancesIn(steps, WindowOf(options, records), options.eplb_interval);
  for (size_t i = 0; i + 1 < rebalances.size(); ++i) {
    if (rebalances[i].is_empty) continue;
    ++gaps->num_rebalances;
    for (size_t request = 0; request < options.num_requests(); ++request) {
      const std::span<const double> times = records.token_times(request);
      for (size_t t = 1; t < times.size(); ++t) {
        if (times[t] < rebalances[i].start) continue;
        if (times[t] >= rebalances[i + 1].start) break;
        const bool during = times[t] < rebalances[i].end;
        (during ? gaps->during : gaps->before)
            .push_back((times[t] - times[t - 1]) * 1e3);
      }
    }
  }
}

void PrintGaps(const std::string& name, const TokenGaps& gaps) {
  if (gaps.during.empty() || gaps.before.empty()) {
    std::printf("no rebalance moved anything\n");
    return;
  }
  const double before = Quantile(gaps.before, 0.99);
  const double during = Quantile(gaps.during, 0.99);
  std::printf(
      "| ranks | processes | by | batch | rebalances | tokens during, before | "
      "p50 ms during, before | p99 ms during, before | ratio of p99 |\n"
      "| %s | %d | %zu, %zu | %.2f, %.2f | %.2f, %.2f | %.2f |\n",
      name.c_str(), gaps.num_rebalances, gaps.during.size(), gaps.before.size(),
      Quantile(gaps.during, 0.5), Quantile(gaps.before, 0.5), during, before,
      during / before);
}

int Run(const Options& options) {
  const GroupRunOptions& run = options.run;
  double barrier = std::numeric_limits<double>::max();
  StepFigures best;
  TokenGaps gaps;
  for (uint32_t round = 0; round < options.rounds; ++round) {
    barrier = std::min(barrier, BarrierCpu(run.ep_size));
    const GroupRunRecords records(run);
    RunGroup(run, records);
    if (run.eplb_interval > 0) AddGaps(run, records, &gaps);
    const StepFigures figures = Summarise(run, records);
    if (round == 0 || figures.mean < best.mean) best = figures;
  }
  PrintVotes(NameOf(run), best);
  PrintParts(NameOf(run), best, barrier * best.barriers);
  if (run.eplb_interval > 0) PrintGaps(NameOf(run), gaps);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::Options options;
  baton::Flags flags("group_benchmark", "An expert-parallel group's steps.");
  baton::AddFlags(flags, &options);
  const auto validate = [&]() -> absl::Status {
    if (options.run.ep_size % options.run.processes != 0) {
      return baton::FieldError("processes", "do not divide the ranks evenly");
    }
    return absl::OkStatus();
  };
  if (auto code = flags.ParseOrExitCode(argc, argv, environ, validate)) {
    return *code;
  }
  return baton::Run(options);
}
