#include "server/group_loop.h"

#include <sys/prctl.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "comm/group_agreement.h"

namespace baton {
namespace {

// Work and the end wake the threads; this bounds what a lost wake-up costs.
constexpr absl::Duration kIdleWait = absl::Seconds(1);
// The engines look for the end of a step by the clock.
constexpr uint64_t kTimerSlackNanoseconds = 1000;
// Whoever closes a connection that we talk over may do so because another one
// is dead: the links know who. If they don't, only that connection is broken.
constexpr absl::Duration kLinkPatience = absl::Seconds(1);
constexpr absl::Duration kJoinPause = absl::Seconds(1);

void LogLines(const std::string& lines) {
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) LOG(ERROR) << line;
}

}  // namespace

GroupLoop::GroupLoop(const GroupLoopOptions& options,
                     GroupMembership* membership, std::vector<Rank> ranks,
                     KvTransferAgent* agent, const Clock* clock)
    : options_(options),
      ranks_(std::move(ranks)),
      clock_(clock),
      membership_(membership),
      transfer_(agent) {}

GroupLoop::~GroupLoop() { LeaveGroup(absl::InfinitePast()); }

void GroupLoop::Start() {
  engines_thread_ = std::thread([this] { Run(); });
}

void GroupLoop::StartLeaving(absl::Time deadline) {
  {
    const absl::MutexLock lock(&mutex_);
    stop_by_ = deadline;
  }
  stop_.store(true);
  membership_->Wake();
}

void GroupLoop::LeaveGroup(absl::Time deadline) {
  if (!engines_thread_.joinable()) return;
  StartLeaving(deadline);
  engines_thread_.join();
  membership_->Leave();
  balancer_.reset();
  for (const Rank& rank : ranks_) rank.dispatch->Bind(nullptr);
}

absl::Time GroupLoop::stop_by() {
  const absl::MutexLock lock(&mutex_);
  return stop_by_;
}

absl::Status GroupLoop::AwaitEpoch() {
  const absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &GroupLoop::is_settled));
  return refusal_;
}

absl::Status GroupLoop::refusal() {
  const absl::MutexLock lock(&mutex_);
  return refusal_;
}

void GroupLoop::Run() {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNanoseconds);
  while (!MayStop()) {
    TakeEvents();
    const bool busy = stepper_.has_value() ? TurnInEpoch() : TurnOutside();
    if (!busy) Wait();
  }
  if (options_.on_left) options_.on_left();
}

bool GroupLoop::MayStop() {
  if (!stop_.load()) return false;
  if (stepper_.has_value() && !all_drain_) {
    if (clock_->Now() < stop_by()) return false;
    StopSteps("the worker leaves its group");
  }
  return std::ranges::all_of(
      ranks_, [](const Rank& rank) { return rank.engine->idle(); });
}

void GroupLoop::TakeEvents() {
  membership_->TakeEvents(&events_);
  for (const MembershipEvent& event : events_) {
    std::visit([this](const auto& known) { OnEvent(known); }, event);
  }
}

void GroupLoop::OnEvent(const EpochStarted& started) {
  group_ = started.group;
  GroupTransport& transport = membership_->transport();
  for (uint32_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i].dispatch->Bind(transport.MakeDispatch(first_rank() + i));
  }
  all_drain_ = false;
  balancer_ = std::make_unique<ExpertBalancer>(BalancerOptions(), clock_,
                                               options_.balance_metrics);
  stepper_.emplace(StepperOptions(), engines(), clock_);
  if (options_.metrics != nullptr) {
    options_.metrics->OnEpochStarted(EpochId(group_.epoch));
  }
  LOG(INFO) << "epoch " << group_.epoch << " starts: processes "
            << group_.members.size() << " ranks "
            << ranks_.front().dispatch->num_ranks() << " by "
            << transport.way();
  SetFormed(true);
}

void GroupLoop::SetFormed(bool formed) {
  {
    const absl::MutexLock lock(&mutex_);
    formed_ = formed;
  }
  if (options_.on_ready) options_.on_ready(formed);
}

void GroupLoop::OnEvent(const EpochEnded& ended) {
  const std::string reason = absl::StrCat(
      "epoch ", ended.end.epoch, " of the worker's group ended, by ranks ",
      FormatRanks(ended.end.ranks), ": ", ended.end.reason);
  LOG(WARNING) << reason;
  StopSteps(reason);
  end_epoch_at_ = absl::InfiniteFuture();
  join_at_ = absl::InfinitePast();
}

void GroupLoop::OnEvent(const GroupRefusal& refusal) {
  StopSteps(std::string(refusal.status.message()));
  {
    const absl::MutexLock lock(&mutex_);
    refusal_ = refusal.status;
  }
  if (options_.on_refused) options_.on_refused();
}

GroupStepperOptions GroupLoop::StepperOptions() {
  GroupStepperOptions options = options_.stepper;
  options.vote.epoch = EpochId(group_.epoch);
  options.vote.num_processes = num_processes();
  options.vote.process = process();
  options.expert_slots = [this](const StepDecision& decision) {
    return balancer_->SlotsOf(decision);
  };
  options.send = [this](const VoteMessage& message) {
    if (num_processes() == 1) return;
    const std::string bytes = EncodeVote(message);
    ReachFaultPoint(FaultPoint::kVotePost);
    for (uint32_t to = 0; to < num_processes(); ++to) {
      if (to == process()) continue;
      membership_->transport().channel().Send(to, bytes);
      ReachFaultPoint(FaultPoint::kVoteSent);
    }
  };
  options.amend_ballot = [this](Ballot* ballot) {
    ballot->draining = stop_.load();
    balancer_->AmendBallot(ballot);
  };
  options.on_step = [this](const StepDecision& decision) {
    all_drain_ = decision.draining && decision.type == VotedStep::kNone;
  };
  if (options_.metrics != nullptr) {
    options.observer = [metrics =
                            options_.metrics](const GroupStepStats& stats) {
      metrics->OnStep(stats);
    };
  }
  return options;
}

ExpertBalancerOptions GroupLoop::BalancerOptions() {
  ExpertBalancerOptions options = options_.balancer;
  options.rebalance.epoch = EpochId(group_.epoch);
  options.rebalance.num_processes = num_processes();
  options.rebalance.process = process();
  options.rebalance.mover.first_rank = first_rank();
  options.rebalance.mover.num_local_ranks =
      static_cast<uint32_t>(ranks_.size());
  options.rebalance.send = [this](uint32_t to, const std::string& message) {
    membership_->transport().channel().Send(to, message);
  };
  options.wake = [this] { membership_->Wake(); };
  return options;
}

bool GroupLoop::TurnInEpoch() {
  ReceiveMessages();
  const bool moved = balancer_->Turn();
  const bool busy = stepper_->Turn();
  CheckWatchdog();
  CheckTransport();
  return busy || moved || !received_.empty();
}

void GroupLoop::ReceiveMessages() {
  membership_->transport().channel().Receive(&received_);
  for (const ChannelMessage& message : received_) {
    const std::optional<VoteMessage> vote = DecodeVote(message.bytes);
    if (vote.has_value() && vote->process == message.from) {
      stepper_->OnMessage(*vote);
    } else if (!balancer_->OnMessage(message.from, message.bytes) &&
               options_.metrics != nullptr) {
      options_.metrics->OnDroppedMessage();
    }
  }
}

void GroupLoop::CheckTransport() {
  const absl::Status status = membership_->transport().status();
  if (status.ok()) return;
  TakeEvents();  // The links may have ended it, and said why.
  if (!stepper_.has_value()) return;
  const std::string reason(status.message());
  if (absl::IsDeadlineExceeded(status)) {
    EndForWaiting(membership_->transport().lost_ranks(), reason);
    return;
  }
  end_epoch_at_ = clock_->Now() + kLinkPatience;
  StopSteps(reason);
}

void GroupLoop::CheckWatchdog() {
  const StepVote& vote = stepper_->vote();
  if (vote.phase() == VotePhase::kPosting || vote.is_complete()) {
    awaited_.reset();
    return;
  }
  const absl::Time now = clock_->Now();
  if (!awaited_.has_value() || awaited_->step != vote.next() ||
      awaited_->phase != vote.phase()) {
    awaited_ = {vote.next(), vote.phase(), now};
    return;
  }
  if (now - awaited_->since <= options_.watchdog) return;
  const std::string reason =
      absl::StrCat("the vote on step ", vote.next().value(), " waited ",
                   absl::FormatDuration(options_.watchdog), " for it");
  EndForWaiting(RanksOfMissing(), reason);
}

void GroupLoop::EndForWaiting(std::vector<uint32_t> ranks,
                              const std::string& reason) {
  DumpSteps();
  if (options_.metrics != nullptr) options_.metrics->OnWatchdog();
  membership_->EndEpoch(group_, std::move(ranks), reason);
  StopSteps(reason);
}

std::vector<uint32_t> GroupLoop::RanksOfMissing() const {
  std::vector<uint32_t> ranks;
  for (const uint32_t process : stepper_->vote().Missing()) {
    const std::vector<uint32_t> more = RanksOf(group_.members[process]);
    ranks.insert(ranks.end(), more.begin(), more.end());
  }
  return ranks;
}

void GroupLoop::DumpSteps() const {
  LOG(ERROR) << "the newest steps of epoch " << group_.epoch << ':';
  LogLines(stepper_->vote().History());
  for (const Rank& rank : ranks_) {
    LOG(ERROR) << "rank " << rank.dispatch->rank() << ':';
    LogLines(rank.engine->steps().Lines(clock_->Now()));
  }
}

void GroupLoop::StopSteps(std::string reason) {
  outside_reason_ = std::move(reason);
  if (!stepper_.has_value()) return;
  stepper_.reset();
  awaited_.reset();
  if (options_.metrics != nullptr) options_.metrics->OnEpochEnded();
  SetFormed(false);
}

bool GroupLoop::TurnOutside() {
  bool busy = false;
  for (const Rank& rank : ranks_) {
    busy |= rank.engine->Collect();
    busy |= rank.engine->EndUnfinished(absl::UnavailableError(outside_reason_));
  }
  const absl::Time now = clock_->Now();
  if (now >= end_epoch_at_) {
    end_epoch_at_ = absl::InfiniteFuture();
    membership_->EndEpoch(group_, membership_->transport().lost_ranks(),
                          outside_reason_);
  }
  if (now >= join_at_ && !stop_.load()) JoinAgain();
  return busy;
}

void GroupLoop::JoinAgain() {
  const bool has_steps = std::ranges::any_of(
      ranks_, [](const Rank& rank) { return rank.engine->has_steps(); });
  if (has_steps) return;
  const absl::Status joined = Rejoin();
  if (joined.ok()) {
    join_at_ = absl::InfiniteFuture();
    return;
  }
  LOG(ERROR) << "cannot join the group, tries again: " << joined.message();
  join_at_ = clock_->Now() + kJoinPause;
}

absl::Status GroupLoop::Rejoin() {
  if (balancer_ != nullptr) RETURN_IF_ERROR(balancer_->End());
  balancer_.reset();
  for (const Rank& rank : ranks_) rank.dispatch->Bind(nullptr);
  return membership_->Join();
}

void GroupLoop::OnStepRows(uint32_t local_rank,
                           std::span<const uint32_t> rows) {
  if (balancer_ != nullptr) balancer_->OnStepRows(local_rank, rows);
}

void GroupLoop::Wait() {
  absl::Duration wait = kIdleWait;
  for (const Rank& rank : ranks_) wait = rank.engine->TimeToNextTurn(wait);
  membership_->Wait(wait);
}

std::vector<LLMEngine*> GroupLoop::engines() const {
  std::vector<LLMEngine*> engines;
  for (const Rank& rank : ranks_) engines.push_back(rank.engine);
  return engines;
}

}  // namespace baton
