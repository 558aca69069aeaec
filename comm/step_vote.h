// How the processes of an expert-parallel group agree on every step.
//
//   kPosting ──Post──► kCollecting ──all ballots──► (decision)
//      ▲                                              │ a prefill to confirm
//      │ ◄──────────── any other ─────────────────────┤
//      │ ◄── all confirmations ── kConfirming ◄───────┘
//
// A process turns all its local ranks and posts one ballot for them together: a
// merge of theirs, and merging loses nothing that a decision needs. It posts
// the ballot of step s + 1 when it has planned step s, so the ballots travel
// while the device works. All processes see the same ballots, so all decide the
// same, without a leader.
//
// A step on which every ballot says that there is nothing to do is not run; the
// group sleeps then. Who has work again posts its ballot of the next step, and
// a peer's ballot wakes whoever has not posted.
#ifndef BATON_COMM_STEP_VOTE_H_
#define BATON_COMM_STEP_VOTE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "comm/step_ids.h"

namespace baton {

// What one rank, or several together, would have the next step be.
struct Ballot {
  uint32_t num_ranks = 0;
  uint32_t num_wanting_prefill = 0;
  // A prompt has waited for longer than max_prefill_wait.
  bool prefill_is_overdue = false;
  bool draining = false;
  // Upper bounds, each of the rank that has most: what is planned when the step
  // comes has to fit.
  uint32_t prefill_tokens = 0;
  uint32_t decode_rows = 0;
  uint32_t num_drafts = 0;
  // The newest placement of experts whose weights are there.
  uint64_t placement_version = 0;

  // Nothing to compute.
  bool idle() const { return num_wanting_prefill == 0 && decode_rows == 0; }
  // With the other's ranks.
  void Merge(const Ballot& other);
  friend bool operator==(const Ballot&, const Ballot&) = default;
};

enum class VotedStep : uint8_t {
  kNone,  // Nobody has anything to do: there is no such step.
  kPrefill,
  kDecode,
};
std::ostream& operator<<(std::ostream& out, VotedStep step);

// Who wanted a prefill; kUnopposed: nobody has a row to decode.
enum class PrefillCause : uint8_t { kNone, kAll, kAny, kUnopposed };

// The same on every process.
struct StepDecision {
  StepId step;
  VotedStep type = VotedStep::kNone;
  PrefillCause cause = PrefillCause::kNone;
  // False: if nobody can schedule a prompt after all, decode.
  bool is_final = true;
  bool draining = false;  // Every rank.
  // What each rank has to keep within.
  uint32_t prefill_tokens = 0;
  uint32_t decode_rows = 0;
  uint32_t num_drafts = 0;
  uint64_t placement_version = 0;
  friend bool operator==(const StepDecision&, const StepDecision&) = default;
};

struct StepVoteOptions {
  EpochId epoch = {};
  uint32_t num_processes = 1;
  uint32_t process = 0;  // Of these, this one.
  // Every so many decode steps, and right behind a prefill: prefill if every
  // rank wants to.
  uint32_t all_interval = 70;
  // Every so many: prefill if any rank wants to.
  uint32_t any_interval = 100;
  // A rank that wants a prefill may find that it can't: ask again before the
  // step is launched. Else a ballot wants only what is reserved already.
  bool confirms = true;
};

enum class VotePhase : uint8_t {
  kPosting,     // Our ballot for the next step is not out.
  kCollecting,  // Waits for the others'.
  kConfirming,  // A prefill was voted for; waits for what came of it.
};
inline constexpr int kNumVotePhases = 3;

constexpr bool IsLegalTransition(VotePhase from, VotePhase to) {
  using enum VotePhase;
  switch (from) {
    case kPosting:  // Post.
      return to == kCollecting;
    case kCollecting:  // Decided: final; or to be confirmed.
      return to == kPosting || to == kConfirming;
    case kConfirming:  // All have said.
      return to == kPosting;
  }
  return false;
}

// Between processes. Encoded, it has kVoteMessageBytes.
struct VoteMessage {
  EpochId epoch = {};
  StepId step;
  uint32_t process = 0;
  bool is_confirmation = false;
  bool got_prefill = false;  // Of a confirmation.
  Ballot ballot = {};        // Else.
  friend bool operator==(const VoteMessage&, const VoteMessage&) = default;
};
std::string EncodeVote(const VoteMessage& message);
// Nullopt: not one of ours.
std::optional<VoteMessage> DecodeVote(std::string_view bytes);

// One process' part in one epoch. Pure; after construction it allocates nothing
// but messages. Owned by the thread that turns the ranks.
class StepVote {
 public:
  explicit StepVote(const StepVoteOptions& options);

  // Our ballot for step next(); to be sent to all others.
  // REQUIRES: kPosting.
  VoteMessage Post(const Ballot& ballot);
  // What a peer sent. False, and counted: of another epoch, late, early by more
  // than a step, again, in our own name, or of nobody.
  bool OnMessage(const VoteMessage& message);
  // Once all ballots are here. A decision that is not final is followed by
  // Confirm; any other moves on to the next step.
  std::optional<StepDecision> Decide();
  // Whether a local rank has a prompt in its plan; to be sent to all others.
  // REQUIRES: kConfirming.
  VoteMessage Confirm(bool got_prefill);
  // Once all have said: the decision, final; a decode if nobody got one.
  std::optional<StepDecision> Settle();

  StepId next() const { return next_; }
  VotePhase phase() const { return phase_; }
  // Somebody has posted for next().
  bool is_called() const;
  bool is_complete() const;  // Nobody is Missing.
  // Who has not said what we wait for, in its order.
  std::vector<uint32_t> Missing() const;
  uint64_t num_dropped() const { return num_dropped_; }
  uint32_t decode_steps() const { return decode_steps_; }
  // The newest decisions with our ballots for them, a line each, the last one
  // last.
  std::string History() const;

 private:
  static constexpr size_t kHistory = 64;
  struct SettledStep {
    StepDecision decision;
    Ballot ours;
  };
  // Of a step: next(), or the one behind it, which a faster peer may vote on.
  struct Round {
    std::vector<std::optional<Ballot>> ballots;  // Of each process.
    std::vector<std::optional<bool>> confirmations;
    uint32_t num_ballots = 0;
    uint32_t num_confirmations = 0;
    void Clear();
  };

  bool Record(const VoteMessage& message);
  Round& RoundOf(StepId step) { return rounds_[step.value() % 2]; }
  const Round& RoundOf(StepId step) const { return rounds_[step.value() % 2]; }
  void MoveTo(VotePhase to);
  PrefillCause CauseOf(const Ballot& all) const;
  // Of a step that is settled.
  void Finish(const StepDecision& decision);

  const StepVoteOptions options_;
  VotePhase phase_ = VotePhase::kPosting;
  StepId next_{1};
  // Since the last prefill step.
  uint32_t decode_steps_ = 0;
  std::array<Round, 2> rounds_;
  StepDecision decision_;  // In kConfirming.
  uint64_t num_dropped_ = 0;
  std::array<SettledStep, kHistory> history_;
  uint64_t num_settled_ = 0;
};

}  // namespace baton

#endif  // BATON_COMM_STEP_VOTE_H_
