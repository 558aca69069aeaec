#include "tests/simulation/group/rebalance_world.h"

#include <algorithm>

#include "base/logging.h"

namespace baton {
namespace {

constexpr uint32_t kDepth = 3;

}  // namespace

RebalanceWorld::RebalanceWorld(const RebalanceWorldOptions& options)
    : options_(options), random_(options.seed) {
  StartEpoch();
}

void RebalanceWorld::Run(uint64_t steps) {
  const uint64_t end = result_.steps + steps;
  while (result_.steps < end) Act();
}

void RebalanceWorld::Settle() {
  settling_ = true;
  const uint64_t interval =
      std::max(options_.interval,
               options_.layout.num_layers + ExpertRebalance::kLeastPause);
  Run(8 * interval + 2 * options_.window_steps);
  for (const Process& process : processes_) {
    const ExpertRebalance& rebalance = *process.rebalance;
    CHECK_EQ(rebalance.counters().dropped_messages, 0u);
    CHECK_EQ(rebalance.mover().counters().failed_batches, process.failures);
  }
  const ExpertRebalanceCounters& leader = processes_[0].rebalance->counters();
  CHECK_GT(leader.rounds, leader.skipped_rounds);
}

double RebalanceWorld::Ratio(const ExpertPlacement& placement) const {
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

double RebalanceWorld::ratio() const {
  return Ratio(processes_[0].rebalance->mover().tables().placement());
}

const RebalanceWorldResult& RebalanceWorld::Finish() {
  Count();
  return result_;
}

void RebalanceWorld::StartEpoch() {
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
    process.slowness = uint64_t{1} << Draw(11);
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

ExpertRebalanceOptions RebalanceWorld::RebalanceOptions(EpochId epoch,
                                                        uint32_t p) {
  Process* process = &processes_[p];
  return {.epoch = epoch,
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
          .send = [this, p](
                      uint32_t to,
                      const std::string& bytes) { Send(p, to, false, bytes); },
          .plan =
              [process](ExpertPlanJob job) {
                process->plans.push_back(std::move(job));
              }};
}

void RebalanceWorld::Count() {
  for (const Process& process : processes_) {
    const ExpertMoverCounters& moves = process.rebalance->mover().counters();
    const ExpertRebalanceCounters& counters = process.rebalance->counters();
    if (process.number == 0) result_.switches += moves.moved_layers;
    result_.abandoned += counters.abandoned_plans;
  }
}

void RebalanceWorld::Act() {
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
      RunDevice(&process, static_cast<uint32_t>(Draw(process.running.size())));
      break;
    case 4:
      if (Draw(process.slowness) == 0) Background(&process);
      break;
  }
}

void RebalanceWorld::Send(uint32_t from, uint32_t to, bool is_vote,
                          const std::string& bytes) {
  uint64_t delay = Draw(8) == 0 ? Draw(200) : Draw(10);
  // So long that a whole plan may come and go meanwhile.
  if (is_vote && options_.separate_channels && Draw(32) == 0) {
    delay += Draw(2000);
  }
  channels_[to][Lane{from, is_vote && options_.separate_channels}].push_back(
      {is_vote, bytes, acts_ + delay * processes_.size()});
}

void RebalanceWorld::Deliver(Process* process) {
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

void RebalanceWorld::TurnVote(Process* process) {
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

void RebalanceWorld::Launch(Process* process, uint64_t version) {
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

void RebalanceWorld::RunDevice(Process* process, uint32_t rank) {
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

void RebalanceWorld::Background(Process* process) {
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

std::set<LayerExpert> RebalanceWorld::Local(const Process& process) const {
  const ExpertMover& mover = process.rebalance->mover();
  const std::vector<LayerExpert> local =
      mover.LocalExperts(mover.tables().placement());
  return {local.begin(), local.end()};
}

void RebalanceWorld::CheckResident(const Process& process,
                                   std::span<const ExpertSlots> slots,
                                   const TakenStep& taken) const {
  const uint32_t per_process =
      options_.ranks_per_process * options_.layout.slots_per_rank;
  for (uint32_t layer = 0; layer < slots.size(); ++layer) {
    const std::span<const uint32_t> experts = slots[layer].experts;
    CHECK(std::equal(experts.begin(), experts.end(),
                     taken.experts[layer].begin(), taken.experts[layer].end()));
    for (uint32_t i = 0; i < per_process; ++i) {
      const uint32_t e = experts[process.number * per_process + i];
      CHECK(process.resident.contains({layer, e}))
          << "layer " << layer << " expert " << e;
    }
  }
}

void RebalanceWorld::CheckUnused(
    const Process& process, const std::vector<LayerExpert>& dropped) const {
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

void RebalanceWorld::CheckBound(const Process& process) const {
  const std::set<LayerExpert> local = Local(process);
  std::set<uint32_t> layers;
  for (const LayerExpert& e : process.resident) {
    if (!local.contains(e)) layers.insert(e.layer);
  }
  CHECK_LE(layers.size(), options_.max_layers_in_flight);
}

uint32_t RebalanceWorld::RowsOf(const ExpertPlacement& placement,
                                uint32_t layer, uint32_t slot) const {
  const ExpertLayout& layout = options_.layout;
  const uint32_t e = placement.experts(layer)[slot];
  const uint64_t hottest = shift_ * 7 + layer;
  const auto place = static_cast<uint32_t>((e + hottest) % layout.num_experts);
  return 6000 / (3 + place) / placement.slots(layer, e).size();
}

std::vector<uint32_t> RebalanceWorld::Rows(std::span<const ExpertSlots> slots,
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
      rows.push_back(
          RowsOf(placement, layer, rank * options_.layout.slots_per_rank + i));
    }
  }
  return rows;
}

}  // namespace baton
