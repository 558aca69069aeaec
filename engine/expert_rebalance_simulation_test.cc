// Groups of processes that move their experts while they take steps: the real
// vote and the real rebalancing over channels with random delays, with loads
// that fail and epochs that end.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "comm/step_vote.h"
#include "engine/expert_rebalance.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr uint32_t kDepth = 3;

struct WorldOptions {
  uint64_t seed = 1;
  uint32_t num_processes = 2;
  uint32_t ranks_per_process = 1;
  ExpertLayout layout;
  uint32_t interval = 40;
  uint32_t window_steps = 32;
  uint32_t max_layers_in_flight = 2;
  bool separate_channels = false;  // For votes.
  uint32_t failures = 0;           // Of 64 loads.
  uint32_t epoch_ends = 0;         // Of 65536 acts.
};

struct WorldResult {
  uint64_t steps = 0;
  uint64_t epochs = 0;
  uint64_t switches = 0;
  uint64_t plans = 0;
  uint64_t abandoned = 0;
  uint64_t skipped = 0;
  uint64_t cancelled = 0;
};

// Experts of the local slots.
std::set<LayerExpert> LocalExperts(const ExpertPlacement& placement,
                                   uint32_t first_rank, uint32_t num_ranks) {
  const ExpertLayout& layout = placement.layout();
  std::set<LayerExpert> experts;
  for (uint32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (const uint32_t e : placement.experts(layer).subspan(
             size_t{first_rank} * layout.slots_per_rank,
             size_t{num_ranks} * layout.slots_per_rank)) {
      experts.insert({layer, e});
    }
  }
  return experts;
}

class World {
 public:
  explicit World(const WorldOptions& options)
      : options_(options), random_(options.seed) {
    StartEpoch();
  }

  void Run(uint64_t steps) {
    const uint64_t end = result_.steps + steps;
    while (result_.steps < end) Act();
  }
  // Nothing fails any more: the group comes to rest at one balanced placement.
  void Settle() {
    settling_ = true;
    const uint64_t first = result_.epochs;
    Run(16 * options_.interval);
    CHECK_EQ(first, result_.epochs);
    const ExpertRebalance& leader = *processes_[0].rebalance;
    CHECK_GE(leader.counters().rounds, 2u);
    for (const Process& process : processes_) {
      CHECK_EQ(process.rebalance->counters().dropped_messages, 0u);
      CHECK_EQ(process.rebalance->mover().counters().failed_batches,
               process.failures);
    }
  }
  // The fullest rank's load over the mean rank's.
  double Ratio() const {
    const ExpertPlacement& placement =
        processes_[0].rebalance->mover().tables().placement();
    double most = 0, sum = 0;
    for (uint32_t layer = 0; layer < options_.layout.num_layers; ++layer) {
      std::vector<double> loads(options_.layout.num_ranks);
      for (uint32_t s = 0; s < options_.layout.num_slots(); ++s) {
        loads[options_.layout.rank_of(s)] += RowsOf(placement, layer, s);
      }
      most += *std::max_element(loads.begin(), loads.end());
      for (const double load : loads) sum += load / loads.size();
    }
    return most / sum;
  }
  const WorldResult& result() {
    Count();
    return result_;
  }

 private:
  struct Job {
    bool loads = false;
    std::vector<LayerExpert> experts;
  };
  struct RunningStep {
    uint64_t step = 0;
    std::span<const ExpertSlots> slots;
  };
  struct Process {
    uint32_t number = 0;
    std::unique_ptr<StepVote> vote;
    std::unique_ptr<ExpertRebalance> rebalance;
    std::deque<Job> jobs;  // Of the background thread.
    std::vector<ExpertPlanJob> plans;
    std::set<LayerExpert> resident;
    std::vector<std::deque<RunningStep>> running;  // Of each rank.
    uint64_t launched = 0;
    uint64_t failures = 0;
  };
  struct TakenStep {
    uint64_t version = 0;
    std::vector<std::vector<uint32_t>> experts;  // By layer.
    uint32_t num_launched = 0;                   // Processes.
  };
  struct Message {
    bool is_vote = false;
    std::string bytes;
    uint64_t not_before = 0;  // Acts.
  };
  using Lane = std::pair<uint32_t, bool>;  // Sender; votes apart.

  void StartEpoch() {
    Count();
    processes_.clear();
    processes_.resize(options_.num_processes);
    channels_.assign(options_.num_processes, {});
    taken_.clear();
    ++result_.epochs;
    const auto epoch = EpochId(result_.epochs);
    for (uint32_t p = 0; p < options_.num_processes; ++p) {
      Process& process = processes_[p];
      process.number = p;
      process.running.resize(options_.ranks_per_process);
      process.vote = std::make_unique<StepVote>(
          StepVoteOptions{.epoch = epoch,
                          .num_processes = options_.num_processes,
                          .process = p,
                          .confirms = false});
      process.rebalance =
          std::make_unique<ExpertRebalance>(RebalanceOptions(epoch, p));
      process.resident = Local(process);
    }
  }

  ExpertRebalanceOptions RebalanceOptions(EpochId epoch, uint32_t p) {
    Process* process = &processes_[p];
    return {
        .epoch = epoch,
        .num_processes = options_.num_processes,
        .process = p,
        .mover = {.layout = options_.layout,
                  .first_rank = p * options_.ranks_per_process,
                  .num_local_ranks = options_.ranks_per_process,
                  .load =
                      [process](std::vector<LayerExpert> experts) {
                        process->jobs.push_back({true, std::move(experts)});
                      },
                  .drop =
                      [this, process](std::vector<LayerExpert> experts) {
                        CheckUnused(*process, experts);
                        process->jobs.push_back({false, std::move(experts)});
                      }},
        .interval = options_.interval,
        .window_steps = options_.window_steps,
        .max_layers_in_flight = options_.max_layers_in_flight,
        .send = [this, p](uint32_t to,
                          std::string bytes) { Send(p, to, false, bytes); },
        .plan =
            [process](ExpertPlanJob job) {
              process->plans.push_back(std::move(job));
            }};
  }

  void Count() {
    for (const Process& process : processes_) {
      const ExpertMoverCounters& moves = process.rebalance->mover().counters();
      const ExpertRebalanceCounters& counters = process.rebalance->counters();
      if (process.number == 0) result_.switches += moves.moved_layers;
      result_.plans += counters.plans;
      result_.abandoned += counters.abandoned_plans;
      result_.skipped += counters.skipped_rounds;
    }
  }

  void Act() {
    ++acts_;
    if (!settling_ && Draw(65536) < options_.epoch_ends) return StartEpoch();
    Process& process = processes_[Draw(processes_.size())];
    switch (Draw(5)) {
      case 0:
      case 1:
        Deliver(&process);
        break;
      case 2:
        TurnVote(&process);
        break;
      case 3:
        RunDevice(&process,
                  static_cast<uint32_t>(Draw(process.running.size())));
        break;
      case 4:
        // Some threads are slow.
        if (Draw(1 + process.number * 8) == 0) Background(&process);
        break;
    }
  }

  void Send(uint32_t from, uint32_t to, bool is_vote,
            const std::string& bytes) {
    const uint64_t delay = Draw(8) == 0 ? Draw(200) : Draw(10);
    channels_[to][Lane{from, is_vote && options_.separate_channels}].push_back(
        {is_vote, bytes, acts_ + delay * processes_.size()});
  }

  void Deliver(Process* process) {
    for (auto& [lane, messages] : channels_[process->number]) {
      if (messages.empty() || messages.front().not_before > acts_) continue;
      const Message message = std::move(messages.front());
      messages.pop_front();
      if (message.is_vote) {
        CHECK(process->vote->OnMessage(*DecodeVote(message.bytes)));
      } else {
        CHECK(process->rebalance->OnMessage(lane.first, message.bytes));
      }
    }
  }

  void TurnVote(Process* process) {
    const bool has_room =
        std::all_of(process->running.begin(), process->running.end(),
                    [](const auto& steps) { return steps.size() < kDepth; });
    if (process->vote->phase() == VotePhase::kPosting) {
      const VoteMessage message = process->vote->Post(
          {.num_ranks = options_.ranks_per_process,
           .decode_rows = Draw(4) == 0 ? 0u : 1u,
           .placement_version = process->rebalance->placement_version()});
      for (uint32_t p = 0; p < processes_.size(); ++p) {
        if (p == process->number) continue;
        Send(process->number, p, true, EncodeVote(message));
      }
    } else if (has_room) {
      const auto decision = process->vote->Decide();
      if (decision.has_value() && decision->type == VotedStep::kDecode) {
        Launch(process, decision->placement_version);
      }
    }
  }

  void Launch(Process* process, uint64_t version) {
    const std::span<const ExpertSlots> slots =
        process->rebalance->OnStep(version);
    CHECK_EQ(slots.size(), options_.layout.num_layers);
    const ExpertTables& tables = process->rebalance->mover().tables();
    const uint64_t step = ++process->launched;
    TakenStep& taken = taken_[step];
    if (taken.num_launched++ == 0) {
      ++result_.steps;
      taken.version = tables.version();
      for (const ExpertSlots& layer : slots) {
        taken.experts.emplace_back(layer.experts.begin(), layer.experts.end());
      }
    }
    CHECK_EQ(taken.version, tables.version()) << "step " << step;
    for (auto& steps : process->running) steps.push_back({step, slots});
    CheckResident(*process, slots, taken);
  }

  // A step's collectives end when every rank is in them.
  void RunDevice(Process* process, uint32_t rank) {
    std::deque<RunningStep>& steps = process->running[rank];
    if (steps.empty()) return;
    const RunningStep step = steps.front();
    const TakenStep& taken = taken_[step.step];
    if (taken.num_launched < processes_.size()) return;
    CheckResident(*process, step.slots, taken);
    const std::vector<uint32_t> rows =
        Rows(step.slots, process->number * options_.ranks_per_process + rank);
    steps.pop_front();
    process->rebalance->OnStepRows(rank, rows);
    CheckBound(*process);
  }

  void Background(Process* process) {
    if (!process->plans.empty() && Draw(2) == 0) {
      ExpertPlan plan = PlanExperts(process->plans.front(), {},
                                    [this] { return Draw(1000) != 0; });
      process->plans.clear();
      return process->rebalance->OnPlanned(std::move(plan));
    }
    if (process->jobs.empty()) return;
    const Job job = std::move(process->jobs.front());
    process->jobs.pop_front();
    if (!job.loads) {
      for (const LayerExpert& e : job.experts) {
        CHECK_EQ(process->resident.erase(e), 1u);
      }
      return;
    }
    const bool fails = !settling_ && Draw(64) < options_.failures;
    process->failures += fails ? 1 : 0;
    if (process->rebalance->mover().phase() == ExpertMovePhase::kCancelled) {
      ++result_.cancelled;
      process->failures -= fails ? 1 : 0;
    }
    if (!fails) {
      for (const LayerExpert& e : job.experts) {
        CHECK(process->resident.insert(e).second) << "loaded already";
      }
      CheckBound(*process);
    }
    process->rebalance->OnLoaded(!fails);
  }

  std::set<LayerExpert> Local(const Process& process) const {
    return LocalExperts(process.rebalance->mover().tables().placement(),
                        process.number * options_.ranks_per_process,
                        options_.ranks_per_process);
  }

  // The tables of a step are what all processes had, and its experts are here.
  void CheckResident(const Process& process, std::span<const ExpertSlots> slots,
                     const TakenStep& taken) const {
    const uint32_t per_process =
        options_.ranks_per_process * options_.layout.slots_per_rank;
    for (uint32_t layer = 0; layer < slots.size(); ++layer) {
      const std::span<const uint32_t> experts = slots[layer].experts;
      CHECK(std::equal(experts.begin(), experts.end(),
                       taken.experts[layer].begin(),
                       taken.experts[layer].end()));
      for (uint32_t i = 0; i < per_process; ++i) {
        const uint32_t e = experts[process.number * per_process + i];
        CHECK(process.resident.contains({layer, e}))
            << "layer " << layer << " expert " << e;
      }
    }
  }

  void CheckUnused(const Process& process,
                   const std::vector<LayerExpert>& dropped) const {
    const uint32_t per_process =
        options_.ranks_per_process * options_.layout.slots_per_rank;
    for (const auto& steps : process.running) {
      for (const RunningStep& step : steps) {
        for (const LayerExpert& e : dropped) {
          const std::span<const uint32_t> local =
              step.slots[e.layer].experts.subspan(process.number * per_process,
                                                  per_process);
          CHECK(std::find(local.begin(), local.end(), e.expert) == local.end())
              << "dropped while step " << step.step << " uses it";
        }
      }
    }
  }

  // What its slots have, and at most one batch.
  void CheckBound(const Process& process) const {
    const std::set<LayerExpert> local = Local(process);
    std::set<uint32_t> layers;
    for (const LayerExpert& e : process.resident) {
      if (!local.contains(e)) layers.insert(e.layer);
    }
    CHECK_LE(layers.size(), options_.max_layers_in_flight);
  }

  // Whatever is busy moves on now and then.
  uint32_t RowsOf(const ExpertPlacement& placement, uint32_t layer,
                  uint32_t slot) const {
    const ExpertLayout& layout = options_.layout;
    const uint32_t e = placement.experts(layer)[slot];
    const uint64_t hottest = shift_ * 7 + layer;
    const auto place =
        static_cast<uint32_t>((e + hottest) % layout.num_experts);
    return 6000 / (3 + place) / placement.slots(layer, e).size();
  }
  std::vector<uint32_t> Rows(std::span<const ExpertSlots> slots,
                             uint32_t rank) {
    // Of the tables themselves, which may be older than the newest.
    ExpertPlacement placement(options_.layout);
    for (uint32_t layer = 0; layer < slots.size(); ++layer) {
      CHECK_OK(placement.SetLayer(layer, slots[layer].experts));
    }
    if (!settling_) shift_ = result_.steps / (3 * options_.interval);
    std::vector<uint32_t> rows;
    for (uint32_t layer = 0; layer < slots.size(); ++layer) {
      for (uint32_t i = 0; i < options_.layout.slots_per_rank; ++i) {
        rows.push_back(RowsOf(placement, layer,
                              rank * options_.layout.slots_per_rank + i));
      }
    }
    return rows;
  }

  uint64_t Draw(uint64_t below) { return random_() % below; }

  const WorldOptions options_;
  std::mt19937_64 random_;
  std::vector<Process> processes_;
  std::vector<std::map<Lane, std::deque<Message>>> channels_;  // By receiver.
  std::map<uint64_t, TakenStep> taken_;                        // Of the epoch.
  uint64_t acts_ = 0;
  uint64_t shift_ = 0;
  bool settling_ = false;
  WorldResult result_;
};

WorldOptions RandomWorld(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&random](uint32_t low, uint32_t high) {
    return static_cast<uint32_t>(low + random() % (high - low + 1));
  };
  WorldOptions options;
  options.seed = seed;
  options.num_processes = draw(1, 5);
  options.ranks_per_process = draw(1, 3);
  const uint32_t ranks = options.num_processes * options.ranks_per_process;
  const uint32_t experts = draw(ranks, 4 * ranks);
  const uint32_t least = DefaultRedundantExperts(experts, ranks);
  const auto layout = MakeExpertLayout(draw(1, 6), experts, ranks,
                                       least + ranks * (ranks > 1 ? 1 : 0));
  options.layout = layout.value();
  options.interval = draw(1, 80);
  options.window_steps = draw(1, 64);
  options.max_layers_in_flight = draw(1, 4);
  options.separate_channels = draw(0, 1) == 0;
  options.failures = draw(0, 2) == 0 ? draw(1, 24) : 0;
  options.epoch_ends = draw(0, 3) == 0 ? 3 : 0;
  return options;
}

constexpr uint64_t kSeeds = 300;

TEST(ExpertRebalanceSimulationTest, ProcessesMoveExpertsAndNeverDiffer) {
  WorldResult total;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    std::cerr << "seed " << seed << '\n';
    World world(RandomWorld(seed));
    world.Run(1000);
    world.Settle();
    const WorldResult& result = world.result();
    total.steps += result.steps;
    total.epochs += result.epochs;
    total.switches += result.switches;
    total.plans += result.plans;
    total.abandoned += result.abandoned;
    total.skipped += result.skipped;
    total.cancelled += result.cancelled;
    std::cerr << "ratio " << world.Ratio() << '\n';
  }
  std::cerr << "steps " << total.steps << " epochs " << total.epochs
            << " switches " << total.switches << " plans " << total.plans
            << " abandoned " << total.abandoned << " skipped " << total.skipped
            << " cancelled " << total.cancelled << '\n';
}

}  // namespace
}  // namespace baton
