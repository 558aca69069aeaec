// A process of a group that hears anything, step after step.
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/logging.h"
#include "comm/step_vote.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton {
namespace {

constexpr uint32_t kProcesses = 3;
constexpr EpochId kEpoch(1);
constexpr uint32_t kDecodeRows = 1;  // Of our own ballots.

VoteMessage Ours(StepId step, uint32_t process, const Ballot& ballot) {
  return {.epoch = kEpoch, .step = step, .process = process, .ballot = ballot};
}

void Decide(StepVote* vote) {
  const std::optional<StepDecision> decision = vote->Decide();
  if (!decision.has_value()) return;
  // Our own ballot is one of those that bound it.
  CHECK_GE(decision->decode_rows, kDecodeRows);
  CHECK(decision->type != VotedStep::kNone);
  if (!decision->is_final) vote->Confirm(decision->step.value() % 2 == 0);
}

}  // namespace

// Messages one behind the other, as long as each is.
std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const bool prefill : {false, true}) {
    std::string seed;
    for (uint64_t step = 1; step < 5; ++step) {
      for (uint32_t process = 1; process < kProcesses; ++process) {
        VoteMessage message = Ours(StepId(step), process,
                                   {.num_ranks = 1,
                                    .num_wanting_prefill = prefill ? 1u : 0u,
                                    .prefill_tokens = prefill ? 5u : 0u,
                                    .decode_rows = 1});
        seed += EncodeVote(message);
        message.ballot = {};
        message.is_confirmation = message.got_prefill = true;
        if (prefill) seed += EncodeVote(message);
      }
    }
    seeds.push_back(seed);
  }
  return seeds;
}

void FuzzOne(std::string_view bytes) {
  StepVote vote({.epoch = kEpoch,
                 .num_processes = kProcesses,
                 .process = 0,
                 .all_interval = 2,
                 .any_interval = 3});
  const size_t length = EncodeVote(Ours(StepId(1), 0, {})).size();
  for (; bytes.size() >= length; bytes.remove_prefix(length)) {
    if (vote.phase() == VotePhase::kPosting) {
      vote.Post({.num_ranks = 1,
                 .num_wanting_prefill = 1,
                 .decode_rows = kDecodeRows});
    }
    const uint64_t dropped = vote.num_dropped();
    const auto message = DecodeVote(bytes.substr(0, length));
    if (!message.has_value()) continue;
    CHECK_EQ(vote.OnMessage(*message), vote.num_dropped() == dropped);
    if (vote.phase() == VotePhase::kCollecting) Decide(&vote);
    if (vote.phase() == VotePhase::kConfirming) vote.Settle();
    CHECK_LE(vote.Missing().size(), kProcesses);
  }
}

}  // namespace baton
