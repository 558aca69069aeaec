#include "comm/step_vote.h"

#include <algorithm>
#include <sstream>

#include "base/logging.h"
#include "comm/wire.h"

namespace baton {
namespace {

// "BVOT", then the version.
constexpr uint32_t kMagic = 0x544f5642;
constexpr uint8_t kVersion = 1;

enum VoteFlag : uint8_t {
  kIsConfirmation = 1,
  kGotPrefill = 2,
  kIsOverdue = 4,
  kIsDraining = 8,
  kAllFlags = 15,
};

VotedStep WithoutPrefill(uint32_t decode_rows) {
  return decode_rows > 0 ? VotedStep::kDecode : VotedStep::kNone;
}

}  // namespace

void Ballot::Merge(const Ballot& other) {
  placement_version =
      num_ranks == 0 ? other.placement_version
                     : std::min(placement_version, other.placement_version);
  draining = (draining || num_ranks == 0) && other.draining;
  num_ranks += other.num_ranks;
  num_wanting_prefill += other.num_wanting_prefill;
  prefill_is_overdue |= other.prefill_is_overdue;
  prefill_tokens = std::max(prefill_tokens, other.prefill_tokens);
  decode_rows = std::max(decode_rows, other.decode_rows);
  num_drafts = std::max(num_drafts, other.num_drafts);
}

std::ostream& operator<<(std::ostream& out, VotedStep step) {
  switch (step) {
    case VotedStep::kNone:
      return out << "none";
    case VotedStep::kPrefill:
      return out << "prefill";
    case VotedStep::kDecode:
      return out << "decode";
  }
  return out;
}

std::string EncodeVote(const VoteMessage& message) {
  const Ballot& ballot = message.ballot;
  const auto flags =
      static_cast<uint8_t>((message.is_confirmation ? kIsConfirmation : 0) |
                           (message.got_prefill ? kGotPrefill : 0) |
                           (ballot.prefill_is_overdue ? kIsOverdue : 0) |
                           (ballot.draining ? kIsDraining : 0));
  return WireWriter()
      .Int(kMagic)
      .Int(kVersion)
      .Int(flags)
      .Int(message.epoch.value())
      .Int(message.step.value())
      .Int(message.process)
      .Int(ballot.num_ranks)
      .Int(ballot.num_wanting_prefill)
      .Int(ballot.prefill_tokens)
      .Int(ballot.decode_rows)
      .Int(ballot.num_drafts)
      .Int(ballot.placement_version)
      .Take();
}

std::optional<VoteMessage> DecodeVote(std::string_view bytes) {
  WireReader in(bytes);
  if (in.Int<uint32_t>() != kMagic || in.Int<uint8_t>() != kVersion) {
    return std::nullopt;
  }
  const auto flags = in.Int<uint8_t>();
  VoteMessage message;
  message.epoch = EpochId(in.Int<uint64_t>());
  message.step = StepId(in.Int<uint64_t>());
  message.process = in.Int<uint32_t>();
  Ballot& ballot = message.ballot;
  ballot.num_ranks = in.Int<uint32_t>();
  ballot.num_wanting_prefill = in.Int<uint32_t>();
  ballot.prefill_tokens = in.Int<uint32_t>();
  ballot.decode_rows = in.Int<uint32_t>();
  ballot.num_drafts = in.Int<uint32_t>();
  ballot.placement_version = in.Int<uint64_t>();
  if (!in.done() || (flags & ~kAllFlags) != 0 ||
      ballot.num_wanting_prefill > ballot.num_ranks) {
    return std::nullopt;
  }
  message.is_confirmation = (flags & kIsConfirmation) != 0;
  message.got_prefill = (flags & kGotPrefill) != 0;
  if (message.got_prefill && !message.is_confirmation) return std::nullopt;
  ballot.prefill_is_overdue = (flags & kIsOverdue) != 0;
  ballot.draining = (flags & kIsDraining) != 0;
  return message;
}

void StepVote::Round::Clear() {
  std::fill(ballots.begin(), ballots.end(), std::nullopt);
  std::fill(confirmations.begin(), confirmations.end(), std::nullopt);
  num_ballots = 0;
  num_confirmations = 0;
}

StepVote::StepVote(const StepVoteOptions& options) : options_(options) {
  CHECK_LT(options.process, options.num_processes);
  CHECK(options.all_interval > 0 && options.any_interval > 0);
  for (Round& round : rounds_) {
    round.ballots.resize(options.num_processes);
    round.confirmations.resize(options.num_processes);
  }
}

VoteMessage StepVote::Post(const Ballot& ballot) {
  CHECK(phase_ == VotePhase::kPosting);
  VoteMessage message = {.epoch = options_.epoch,
                         .step = next_,
                         .process = options_.process,
                         .ballot = ballot};
  CHECK(Record(message));
  MoveTo(VotePhase::kCollecting);
  return message;
}

VoteMessage StepVote::Confirm(bool got_prefill) {
  CHECK(phase_ == VotePhase::kConfirming);
  const VoteMessage message = {.epoch = options_.epoch,
                               .step = next_,
                               .process = options_.process,
                               .is_confirmation = true,
                               .got_prefill = got_prefill};
  CHECK(Record(message)) << "confirmed twice";
  return message;
}

bool StepVote::OnMessage(const VoteMessage& message) {
  StepId after = next_;
  ++after;
  const bool is_new = message.epoch == options_.epoch &&
                      message.process < options_.num_processes &&
                      message.process != options_.process &&
                      (message.step == next_ || message.step == after) &&
                      Record(message);
  num_dropped_ += !is_new;
  return is_new;
}

// False: it was there.
bool StepVote::Record(const VoteMessage& message) {
  Round& round = RoundOf(message.step);
  bool is_new = false;
  if (message.is_confirmation) {
    std::optional<bool>& place = round.confirmations[message.process];
    is_new = !place.has_value();
    if (is_new) place = message.got_prefill;
    round.num_confirmations += is_new;
  } else {
    std::optional<Ballot>& place = round.ballots[message.process];
    is_new = !place.has_value();
    if (is_new) place = message.ballot;
    round.num_ballots += is_new;
  }
  return is_new;
}

std::optional<StepDecision> StepVote::Decide() {
  const Round& round = RoundOf(next_);
  if (phase_ != VotePhase::kCollecting || !is_complete()) return std::nullopt;
  Ballot all;
  for (const std::optional<Ballot>& ballot : round.ballots) all.Merge(*ballot);
  const PrefillCause cause = CauseOf(all);
  const bool prefills = cause != PrefillCause::kNone;
  decision_ = {
      .step = next_,
      .type = prefills ? VotedStep::kPrefill : WithoutPrefill(all.decode_rows),
      .cause = cause,
      .is_final = !prefills || !options_.confirms,
      .draining = all.draining,
      .prefill_tokens = all.prefill_tokens,
      .decode_rows = all.decode_rows,
      .num_drafts = all.num_drafts,
      .placement_version = all.placement_version};
  if (decision_.is_final) {
    Finish(decision_);
  } else {
    MoveTo(VotePhase::kConfirming);
  }
  return decision_;
}

std::optional<StepDecision> StepVote::Settle() {
  const Round& round = RoundOf(next_);
  if (phase_ != VotePhase::kConfirming || !is_complete()) return std::nullopt;
  const bool any = std::any_of(
      round.confirmations.begin(), round.confirmations.end(),
      [](const std::optional<bool>& got) { return got.value_or(false); });
  decision_.is_final = true;
  if (!any) {
    decision_.type = WithoutPrefill(decision_.decode_rows);
    decision_.cause = PrefillCause::kNone;
  }
  Finish(decision_);
  return decision_;
}

// Where ALL and ANY fall together, ANY counts. A group that has nothing to
// decode has no reason to wait.
PrefillCause StepVote::CauseOf(const Ballot& all) const {
  if (all.num_wanting_prefill == 0) return PrefillCause::kNone;
  if (all.decode_rows == 0) return PrefillCause::kUnopposed;
  const bool any_point =
      all.prefill_is_overdue ||
      (decode_steps_ > 0 && decode_steps_ % options_.any_interval == 0);
  if (any_point) return PrefillCause::kAny;
  const bool all_point = decode_steps_ % options_.all_interval == 0;
  return all_point && all.num_wanting_prefill == all.num_ranks
             ? PrefillCause::kAll
             : PrefillCause::kNone;
}

void StepVote::Finish(const StepDecision& decision) {
  if (decision.type == VotedStep::kPrefill) decode_steps_ = 0;
  if (decision.type == VotedStep::kDecode) ++decode_steps_;
  history_[num_settled_++ % kHistory] = {
      decision, *RoundOf(next_).ballots[options_.process]};
  RoundOf(next_).Clear();
  ++next_;
  MoveTo(VotePhase::kPosting);
}

bool StepVote::is_called() const { return RoundOf(next_).num_ballots > 0; }

bool StepVote::is_complete() const {
  const Round& round = RoundOf(next_);
  return options_.num_processes == (phase_ == VotePhase::kConfirming
                                        ? round.num_confirmations
                                        : round.num_ballots);
}

std::vector<uint32_t> StepVote::Missing() const {
  std::vector<uint32_t> missing;
  const Round& round = RoundOf(next_);
  for (uint32_t i = 0; i < options_.num_processes; ++i) {
    const bool is_here = phase_ == VotePhase::kConfirming
                             ? round.confirmations[i].has_value()
                             : round.ballots[i].has_value();
    if (!is_here) missing.push_back(i);
  }
  return missing;
}

std::string StepVote::History() const {
  std::ostringstream out;
  const uint64_t count = std::min<uint64_t>(num_settled_, kHistory);
  for (uint64_t i = num_settled_ - count; i < num_settled_; ++i) {
    const StepDecision& step = history_[i % kHistory].decision;
    const Ballot& ours = history_[i % kHistory].ours;
    out << "step " << step.step << ' ' << step.type << " prefill_tokens "
        << step.prefill_tokens << " decode_rows " << step.decode_rows
        << " num_drafts " << step.num_drafts << " placement "
        << step.placement_version << "; ours: " << ours.num_wanting_prefill
        << " of " << ours.num_ranks << " ranks want "
        << (ours.prefill_is_overdue ? "overdue " : "") << "prefill_tokens "
        << ours.prefill_tokens << " decode_rows " << ours.decode_rows
        << " num_drafts " << ours.num_drafts << " placement "
        << ours.placement_version << (ours.draining ? " draining" : "") << '\n';
  }
  return out.str();
}

void StepVote::MoveTo(VotePhase to) {
  CHECK(IsLegalTransition(phase_, to));
  phase_ = to;
}

}  // namespace baton
