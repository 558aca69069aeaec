#include "tests/simulation/group/group_world.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/logging.h"

namespace baton {
namespace {

constexpr uint64_t kActsPerOutsideAct = 16;
// A message is held up for a few turns; a lost one until it is sent again.
constexpr uint32_t kMostTurnsHeld = 4;
constexpr uint32_t kTurnsToResend = 20;
// Turns of each process without a step, until its watchdog looks.
constexpr uint64_t kPatience = 600;

}  // namespace

struct GroupWorld::Process {
  uint32_t number = 0;
  std::vector<std::unique_ptr<SimulatedRank>> ranks;  // Empty: dead.
  std::optional<GroupStepper> stepper;  // None: outside the epoch.
  StepId newest_step;                   // Of the epoch.
  uint64_t num_fallbacks = 0;           // Of the stepper, looked at.
  uint64_t version = 0;                 // Of the placement that it has.
  std::vector<InFlightMessage> inbox;
  uint64_t away_until = 0;  // Stopped or dead; in acts.
  std::vector<RequestId> not_swept;

  bool is_dead() const { return ranks.empty(); }
};

GroupWorld::GroupWorld(const GroupWorldOptions& options)
    : options_(options),
      random_(options.seed),
      requests_(MakeGroupRequests(options.requests, &random_)) {
  for (uint32_t p = 0; p < options.num_processes; ++p) {
    processes_.push_back(std::make_unique<Process>());
    processes_.back()->number = p;
    Return(processes_.back().get());
  }
}

GroupWorld::~GroupWorld() {
  // What is live, after a livelock, ends with its rank.
  for (const auto& client : clients_) {
    if (client->state() == GroupClient::State::kInside) client->Lose();
  }
  processes_.clear();
}

void GroupWorld::Run(uint64_t rank_steps) {
  while (result_.rank_steps < rank_steps && result_.livelocks == 0) Act();
  if (result_.livelocks == 0) Drain();
  for (const auto& process : processes_) {
    if (process->stepper.has_value()) Leave(process.get());
  }
}

void GroupWorld::Act() {
  Turn(static_cast<uint32_t>(Draw(processes_.size())));
  if (++acts_ % kActsPerOutsideAct != 0) return;
  clock_.Advance(absl::Microseconds(kActsPerOutsideAct));
  ActOutside();
}

void GroupWorld::ActOutside() {
  LookForStandstill();
  ServeClients();
  if (draining_) return;
  const uint64_t pick = Draw(65536);
  if (pick < options_.fault_weight) return DoFault();
  if (pick >= 65536 - options_.abort_weight) return AbortOne();
  if (pick % 32 == 2) ++processes_[Draw(processes_.size())]->version;
  // Now and then nobody asks for anything, until the group sleeps.
  if (pick % 1024 == 3) quiet_until_ = acts_ + Draw(1024) * processes_.size();
}

void GroupWorld::Drain() {
  draining_ = true;
  while (!IsQuiet() && result_.livelocks == 0) Act();
}

bool GroupWorld::IsQuiet() const {
  return clients_.empty() &&
         std::all_of(processes_.begin(), processes_.end(),
                     [](const std::unique_ptr<Process>& process) {
                       return process->stepper.has_value() &&
                              process->stepper->asleep() &&
                              std::all_of(process->ranks.begin(),
                                          process->ranks.end(),
                                          [](const auto& rank) {
                                            return rank->engine().idle();
                                          });
                     });
}

void GroupWorld::Turn(uint32_t p) {
  Process& process = *processes_[p];
  if (acts_ < process.away_until) return;
  if (process.is_dead()) Return(&process);
  if (ending_) {
    // Its connections tell it, some time.
    if (process.stepper.has_value() && Draw(4) == 0) Leave(&process);
    if (num_joined_ == 0) {
      ending_ = false;
      ++epoch_;
    }
  } else if (!process.stepper.has_value()) {
    return Join(p);
  }
  if (!process.stepper.has_value() || num_joined_ < processes_.size()) return;
  Deliver(&process);
  RunDevices(&process);
  process.stepper->Turn();
}

void GroupWorld::Join(uint32_t p) {
  Process& process = *processes_[p];
  std::vector<LLMEngine*> engines;
  for (const auto& rank : process.ranks) engines.push_back(&rank->engine());
  process.newest_step = {};
  process.num_fallbacks = 0;
  process.version = 0;
  process.stepper.emplace(
      GroupStepperOptions{
          .vote = {.epoch = epoch_,
                   .num_processes = options_.num_processes,
                   .process = p,
                   .all_interval = options_.all_interval,
                   .any_interval = options_.any_interval,
                   .confirms = options_.has_second_round},
          .max_prefill_wait = options_.max_prefill_wait,
          .expert_slots =
              [](const StepDecision& decision) {
                return TablesOf(decision.placement_version);
              },
          .send = [this, p](const VoteMessage& message) { Send(p, message); },
          .amend_ballot =
              [this, p](Ballot* ballot) {
                AmendBallot(processes_[p].get(), ballot);
              },
          .on_step =
              [this, p](const StepDecision& decision) { OnStep(p, decision); }},
      std::move(engines), &clock_);
  if (++num_joined_ < processes_.size()) return;
  ++result_.epochs;
  newest_version_ = 0;
  steps_of_wish_ = 0;
  steps_without_progress_ = 0;
  newest_step_act_ = acts_;
}

void GroupWorld::Leave(Process* process) {
  --num_joined_;
  result_.late_messages += process->stepper->vote().num_dropped();
  result_.empty_rank_steps += process->stepper->counters().empty_rank_steps;
  process->stepper.reset();
  for (const auto& rank : process->ranks) rank->Abandon();
}

void GroupWorld::Send(uint32_t from, const VoteMessage& message) {
  const VoteMessage sent =
      Draw(16) == 0 ? DecodeVote(EncodeVote(message)).value() : message;
  for (const auto& process : processes_) {
    if (process->number == from || process->is_dead()) continue;
    const uint64_t fate = random_();
    InFlightMessage in_flight = {sent,
                                 static_cast<uint32_t>(fate % kMostTurnsHeld)};
    if ((fate >> 8) % 64 == 0) in_flight.hold += kTurnsToResend;  // Lost.
    process->inbox.push_back(in_flight);
    if ((fate >> 16) % 64 != 0) continue;
    in_flight.hold += (fate >> 24) % kTurnsToResend;
    process->inbox.push_back(in_flight);
  }
}

void GroupWorld::Deliver(Process* process) {
  std::vector<InFlightMessage>& inbox = process->inbox;
  for (size_t i = 0; i < inbox.size();) {
    if (inbox[i].hold > 0) {
      --inbox[i++].hold;
      continue;
    }
    process->stepper->OnMessage(inbox[i].message);
    std::swap(inbox[i], inbox.back());
    inbox.pop_back();
  }
}

// A step's collectives end when every rank is in them.
void GroupWorld::RunDevices(Process* process) {
  for (const auto& rank : process->ranks) {
    while (!rank->in_flight().empty() && Draw(2) == 0) {
      const StepId oldest = rank->in_flight().front();
      const TakenStep& taken = taken_[oldest.value() % taken_.size()];
      CHECK(taken.epoch == epoch_ && taken.decision.step == oldest);
      if (taken.num_launched < num_ranks()) break;
      rank->RunOldest();
    }
  }
}

void GroupWorld::AmendBallot(Process* process, Ballot* ballot) const {
  ballot->placement_version = process->version;
  if (options_.wants_by_estimate) {
    ballot->num_wanting_prefill = 0;
    for (const auto& rank : process->ranks) {
      const bool waits = rank->engine().load().waiting_requests > 0;
      const bool wants = waits || rank->engine().Wish().prefill_tokens > 0;
      ballot->num_wanting_prefill += wants ? 1 : 0;
      if (waits) {
        ballot->prefill_tokens = options_.rank.engine.max_batched_tokens;
      }
    }
  }
  if (!options_.sweeps_when_decoding && HeadIsOver(*process)) {
    ballot->num_wanting_prefill = 0;
    ballot->prefill_tokens = 0;
    ballot->prefill_is_overdue = false;
  }
}

bool GroupWorld::HeadIsOver(const Process& process) const {
  const GroupClient* head = nullptr;
  for (const auto& client : clients_) {
    if (!client->waits() ||
        client->rank() / options_.ranks_per_process != process.number) {
      continue;
    }
    if (head == nullptr || client->id() < head->id()) head = client.get();
  }
  return head != nullptr && head->aborted();
}

void GroupWorld::OnStep(uint32_t p, const StepDecision& decision) {
  Process& process = *processes_[p];
  CHECK(decision.is_final);
  CHECK(++process.newest_step == decision.step) << "process " << p;
  const uint64_t fallbacks = process.stepper->counters().prefill_fallbacks;
  const bool fell_back =
      fallbacks > std::exchange(process.num_fallbacks, fallbacks);
  TakenStep& taken = taken_[decision.step.value() % taken_.size()];
  if (taken.epoch == epoch_ && taken.decision.step == decision.step) {
    CHECK(taken.decision == decision)
        << "process " << p << " differs in step " << decision.step;
  } else {
    taken = {.epoch = epoch_, .decision = decision};
    OnNewStep(decision, fell_back);
  }
  CHECK_LE(decision.placement_version, process.version);
  if (decision.type == VotedStep::kNone) return;
  for (const auto& rank : process.ranks) rank->OnLaunch(decision);
  taken.num_launched += options_.ranks_per_process;
  result_.rank_steps += options_.ranks_per_process;
  if (decision.type == VotedStep::kPrefill) Sweep(&process);
}

void GroupWorld::OnNewStep(const StepDecision& decision, bool fell_back) {
  newest_step_act_ = acts_;
  ++result_.steps;
  result_.fallbacks += fell_back ? 1 : 0;
  result_.sleeps += decision.type == VotedStep::kNone ? 1 : 0;
  result_.prefill_steps += decision.type == VotedStep::kPrefill ? 1 : 0;
  CHECK_GE(decision.placement_version, newest_version_);
  result_.placement_switches +=
      decision.placement_version > newest_version_ ? 1 : 0;
  newest_version_ = decision.placement_version;

  const bool waits = decision.type == VotedStep::kDecode && !fell_back &&
                     decision.prefill_tokens > 0;
  steps_of_wish_ = waits ? steps_of_wish_ + 1 : 0;
  CHECK_LE(steps_of_wish_, options_.any_interval);
  result_.longest_wish =
      std::max<uint64_t>(result_.longest_wish, steps_of_wish_);

  const bool progressed = std::exchange(seen_progress_, progress_) < progress_;
  steps_without_progress_ = progressed ? 0 : steps_without_progress_ + 1;
  // A prompt of several chunks, with nobody who decodes, goes on each step.
  const uint32_t bound = 2 * options_.any_interval + 64;
  if (steps_without_progress_ > bound && !clients_.empty()) {
    OnLivelock("steps, and nobody gets anything");
  }
}

void GroupWorld::ServeClients() {
  for (size_t i = 0; i < clients_.size();) {
    GroupClient* client = clients_[i].get();
    if (client->state() == GroupClient::State::kDone) {
      result_.tokens += client->num_tokens();
      result_.aborted += client->aborted() ? 1 : 0;
      result_.handed_back += std::max(1u, client->num_submits()) - 1;
      std::swap(clients_[i], clients_.back());
      clients_.pop_back();
      continue;
    }
    if (client->state() == GroupClient::State::kOutside && Draw(4) == 0) {
      Submit(client);
    }
    ++i;
  }
  if (draining_ || acts_ < quiet_until_) return;
  if (clients_.size() >= options_.max_clients) return;
  const RequestId id = {.router_nonce = 1, .counter = ++next_client_};
  clients_.push_back(std::make_unique<GroupClient>(
      &requests_[Draw(requests_.size())], id, &progress_));
  ++result_.requests;
}

void GroupWorld::Submit(GroupClient* client) {
  const auto rank = static_cast<uint32_t>(Draw(num_ranks()));
  Process& process = *processes_[rank / options_.ranks_per_process];
  if (process.is_dead()) return;
  LLMEngine& engine =
      process.ranks[rank % options_.ranks_per_process]->engine();
  const absl::Status status = engine.Submit(client->Submit(rank), client);
  if (status.ok()) return;
  CHECK(absl::IsResourceExhausted(status)) << status.ToString();
  client->Refused();
}

void GroupWorld::AbortOne() {
  if (clients_.empty()) return;
  GroupClient* client = clients_[Draw(clients_.size())].get();
  if (client->state() != GroupClient::State::kInside || client->aborted()) {
    return;
  }
  Process& process = *processes_[client->rank() / options_.ranks_per_process];
  client->Abort();
  if (!options_.sweeps_when_decoding && client->waits()) {
    process.not_swept.push_back(client->id());
    return;
  }
  process.ranks[client->rank() % options_.ranks_per_process]->engine().Abort(
      client->id(), std::nullopt);
}

// They are told at the next turn.
void GroupWorld::Sweep(Process* process) {
  for (const RequestId& id : process->not_swept) {
    for (const auto& rank : process->ranks) {
      rank->engine().Abort(id, std::nullopt);
    }
  }
  process->not_swept.clear();
}

void GroupWorld::DoFault() {
  const auto p = static_cast<uint32_t>(Draw(processes_.size()));
  Process& process = *processes_[p];
  if (process.is_dead() || acts_ < process.away_until) return;
  if (Draw(2) == 0) return Kill(p);
  ++result_.stops;
  process.away_until = acts_ + Draw(1500) * processes_.size();
}

void GroupWorld::Kill(uint32_t p) {
  Process& process = *processes_[p];
  ++result_.kills;
  std::vector<GroupClient*> lost;
  for (const auto& client : clients_) {
    if (client->state() != GroupClient::State::kInside ||
        client->rank() / options_.ranks_per_process != p) {
      continue;
    }
    client->Lose();
    lost.push_back(client.get());
  }
  if (process.stepper.has_value()) {
    Leave(&process);
    ending_ = num_joined_ > 0;
    if (!ending_) ++epoch_;
  }
  process.ranks.clear();
  for (GroupClient* client : lost) client->Leave();
  process.inbox.clear();
  process.not_swept.clear();
  process.away_until = acts_ + Draw(400) * processes_.size();
  // What it said last has reached some, and others not.
  for (const auto& other : processes_) {
    std::erase_if(other->inbox, [this, p](const InFlightMessage& in_flight) {
      return in_flight.message.process == p && Draw(2) == 0;
    });
  }
}

void GroupWorld::Return(Process* process) {
  for (uint32_t i = 0; i < options_.ranks_per_process; ++i) {
    process->ranks.push_back(
        std::make_unique<SimulatedRank>(options_.rank, &clock_));
  }
}

// The watchdog's part.
void GroupWorld::LookForStandstill() {
  const uint64_t patience = kPatience * processes_.size();
  if (ending_ || num_joined_ < processes_.size()) return;
  const bool has_work =
      std::any_of(clients_.begin(), clients_.end(), [](const auto& client) {
        return client->state() == GroupClient::State::kInside;
      });
  if (!has_work) newest_step_act_ = acts_;
  if (acts_ - newest_step_act_ < patience) return;
  newest_step_act_ = acts_;
  const bool is_late =
      std::any_of(processes_.begin(), processes_.end(),
                  [this](const auto& process) { return IsLate(*process); });
  if (is_late) return Fence();
  OnLivelock("requests, and no step");
}

// It is away, or has only just come back to what was sent meanwhile.
bool GroupWorld::IsLate(const Process& process) const {
  return acts_ < process.away_until + kPatience / 2 * processes_.size();
}

// Once all that was said has arrived, who is furthest behind and runs misses
// only those who don't run.
void GroupWorld::Fence() {
  const GroupStepper* behind = nullptr;
  const auto progress_of = [](const StepVote& vote) {
    return std::pair(vote.next(), vote.phase());
  };
  for (const auto& process : processes_) {
    if (acts_ >= process->away_until && !process->inbox.empty()) return;
    if (IsLate(*process)) continue;
    const StepVote& vote = process->stepper->vote();
    if (behind == nullptr || progress_of(vote) < progress_of(behind->vote())) {
      behind = &*process->stepper;
    }
  }
  if (behind == nullptr || behind->vote().phase() == VotePhase::kPosting) {
    return;
  }
  const std::vector<uint32_t> missing = behind->vote().Missing();
  if (missing.empty()) return;
  for (const uint32_t p : missing) {
    CHECK(IsLate(*processes_[p])) << behind->vote().History();
  }
  ++result_.fences;
  ending_ = true;
}

void GroupWorld::OnLivelock(const char* what) {
  CHECK(options_.may_livelock) << what;
  ++result_.livelocks;
}

}  // namespace baton
