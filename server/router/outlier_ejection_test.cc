#include "server/router/outlier_ejection.h"

#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

using enum EjectionState;

TEST(EjectionStateTest, MovesAlongTheEdgesOfTheTableAlone) {
  const std::map<EjectionState, std::vector<EjectionState>> edges = {
      {kIn, {kEjected}},
      {kEjected, {kIn, kReturning}},
      {kReturning, {kIn, kOnTrial}},
      {kOnTrial, {kIn, kEjected, kReturning}}};
  for (int from = 0; from < kNumEjectionStates; ++from) {
    std::vector<EjectionState> legal;
    for (int to = 0; to < kNumEjectionStates; ++to) {
      if (IsLegalTransition(static_cast<EjectionState>(from),
                            static_cast<EjectionState>(to))) {
        legal.push_back(static_cast<EjectionState>(to));
      }
    }
    EXPECT_EQ(legal, edges.at(static_cast<EjectionState>(from))) << from;
  }
}

TEST(OutcomeOfTest, BlamesTheWorkerForItsOwnFaultsAlone) {
  using enum CallOutcome;
  const absl::Status draining =
      WithReason(absl::UnavailableError(""), "DRAINING");
  EXPECT_EQ(OutcomeOf(absl::OkStatus(), false), kGood);
  EXPECT_EQ(OutcomeOf(absl::InternalError(""), true), kFailed);
  EXPECT_EQ(OutcomeOf(absl::UnknownError(""), false), kFailed);
  EXPECT_EQ(OutcomeOf(absl::DataLossError(""), false), kFailed);
  EXPECT_EQ(OutcomeOf(absl::UnavailableError(""), true), kLost);
  EXPECT_EQ(OutcomeOf(draining, false), kNone);
  EXPECT_EQ(OutcomeOf(absl::AbortedError(""), true), kLost);
  EXPECT_EQ(OutcomeOf(WithReason(absl::AbortedError(""), "X"), true), kNone);
  EXPECT_EQ(OutcomeOf(absl::AbortedError("SLOW_READER: 9s"), true), kNone);
  EXPECT_EQ(OutcomeOf(absl::DeadlineExceededError(""), false), kDeadline);
  EXPECT_EQ(OutcomeOf(absl::DeadlineExceededError(""), true), kNone);
  EXPECT_EQ(OutcomeOf(absl::CancelledError(""), false), kNone);
  EXPECT_EQ(OutcomeOf(absl::CancelledError(""), true), kGood);
  for (const absl::Status& status :
       {absl::InvalidArgumentError(""), absl::ResourceExhaustedError(""),
        absl::FailedPreconditionError(""), absl::AlreadyExistsError("")}) {
    EXPECT_EQ(OutcomeOf(status, false), kNone) << status;
  }
}

TEST(EjectionReasonTest, HasAName) {
  for (int i = 0; i < kNumEjectionReasons; ++i) {
    EXPECT_FALSE(EjectionReasonName(static_cast<EjectionReason>(i)).empty());
  }
}

class OutlierEjectionTest : public ::testing::Test {
 protected:
  static OutlierEjection::Options Options() {
    return {.failures_in_a_row = 3,
            .failure_ratio = 0.5,
            .min_calls = 10,
            .window = absl::Seconds(10),
            .first_ejection = absl::Seconds(5),
            .max_ejection = absl::Seconds(60),
            .max_ejected_share = 0.5};
  }
  void Make(uint32_t num_workers) { Make(num_workers, Options()); }
  void Make(uint32_t num_workers, const OutlierEjection::Options& options) {
    ejection_.emplace(options);
    for (uint32_t i = 0; i < num_workers; ++i) {
      ejection_->Join(WorkerId(i));
      ejection_->SetServing(WorkerId(i), true);
    }
  }
  uint64_t Begin(uint32_t worker) {
    return ejection_->OnCallBegan(WorkerId(worker), now_);
  }
  std::optional<EjectionReason> End(uint32_t worker, uint64_t call,
                                    CallOutcome outcome) {
    const auto reason =
        ejection_->OnCallEnded(WorkerId(worker), call, outcome, now_);
    ejection_->CheckInvariants();
    return reason;
  }
  std::optional<EjectionReason> Call(uint32_t worker, CallOutcome outcome) {
    return End(worker, Begin(worker), outcome);
  }
  std::optional<EjectionReason> Fail(uint32_t worker, int times = 1) {
    std::optional<EjectionReason> last;
    for (int i = 0; i < times; ++i) last = Call(worker, CallOutcome::kFailed);
    return last;
  }
  EjectionState State(uint32_t worker) {
    return ejection_->StateAt(WorkerId(worker), now_);
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  std::optional<OutlierEjection> ejection_;
};

TEST_F(OutlierEjectionTest, EjectsAWorkerThatFailsSoOftenInARow) {
  Make(2);
  EXPECT_EQ(Fail(0, 2), std::nullopt);
  EXPECT_EQ(State(0), kIn);
  EXPECT_EQ(Fail(0), EjectionReason::kInARow);
  EXPECT_EQ(State(0), kEjected);
  EXPECT_EQ(State(1), kIn);
  EXPECT_EQ(ejection_->num_out(), 1);
}

TEST_F(OutlierEjectionTest, BeginsToCountAnewWithAGoodCall) {
  Make(2);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(Fail(0, 2), std::nullopt);
    Call(0, CallOutcome::kNone);
    Call(0, CallOutcome::kGood);
    now_ += absl::Seconds(11);  // The ratio is of a window.
  }
  EXPECT_EQ(State(0), kIn);
}

TEST_F(OutlierEjectionTest, EjectsAWorkerThatFailsTooOften) {
  Make(2);
  for (int i = 0; i < 9; ++i) {
    EXPECT_EQ(Call(0, i % 2 == 0 ? CallOutcome::kFailed : CallOutcome::kGood),
              std::nullopt);
  }
  EXPECT_EQ(Call(0, CallOutcome::kFailed), EjectionReason::kRatio);
}

TEST_F(OutlierEjectionTest, CountsWhatEndsWithOneConnectionOnce) {
  Make(2);
  std::vector<uint64_t> calls;
  for (int i = 0; i < 64; ++i) calls.push_back(Begin(0));
  for (uint64_t call : calls) {
    EXPECT_EQ(End(0, call, CallOutcome::kLost), std::nullopt);
  }
  EXPECT_EQ(Call(0, CallOutcome::kLost), std::nullopt);
  EXPECT_EQ(Call(0, CallOutcome::kLost), EjectionReason::kInARow);
}

TEST_F(OutlierEjectionTest, MindsADeadlineWhileOthersAreFine) {
  Make(2);
  Call(1, CallOutcome::kGood);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Call(0, CallOutcome::kDeadline), std::nullopt);
  }
  EXPECT_EQ(Call(0, CallOutcome::kDeadline), EjectionReason::kInARow);
}

TEST_F(OutlierEjectionTest, MindsNoDeadlineThatOthersMissToo) {
  Make(3);
  for (int i = 0; i < 10; ++i) {
    for (uint32_t worker = 0; worker < 3; ++worker) {
      EXPECT_EQ(Call(worker, CallOutcome::kDeadline), std::nullopt);
    }
    Call(2, CallOutcome::kGood);
  }
}

TEST_F(OutlierEjectionTest, MindsNoDeadlineWhereNobodyElseIsAsked) {
  Make(2);
  for (int i = 0; i < 10; ++i) Call(0, CallOutcome::kDeadline);
  EXPECT_EQ(State(0), kIn);
}

TEST_F(OutlierEjectionTest, BringsItBackByOneTrialAtATime) {
  Make(2);
  Fail(0, 3);
  now_ += absl::Seconds(5) - absl::Nanoseconds(1);
  EXPECT_EQ(State(0), kEjected);
  now_ += absl::Nanoseconds(1);
  EXPECT_EQ(State(0), kReturning);
  const uint64_t trial = Begin(0);
  EXPECT_EQ(State(0), kOnTrial);
  EXPECT_EQ(End(0, trial, CallOutcome::kNone), std::nullopt);
  EXPECT_EQ(State(0), kReturning) << "a client that left says nothing";
  Call(0, CallOutcome::kGood);
  EXPECT_EQ(State(0), kIn);
  EXPECT_EQ(Fail(0, 2), std::nullopt) << "older failures are forgotten";
}

TEST_F(OutlierEjectionTest, NeedsNotWaitForTheEndOfATrialThatIsAnswered) {
  Make(2);
  Fail(0, 3);
  now_ += absl::Seconds(5);
  const uint64_t trial = Begin(0);
  ejection_->OnAnswered(WorkerId(0), trial + 1, now_);
  EXPECT_EQ(State(0), kOnTrial) << "another call";
  ejection_->OnAnswered(WorkerId(0), trial, now_);
  EXPECT_EQ(State(0), kIn);
  EXPECT_EQ(End(0, trial, CallOutcome::kFailed), std::nullopt)
      << "one of three";
}

TEST_F(OutlierEjectionTest, DoublesTheTimeOfEachTrialThatFailsUpToTheLongest) {
  Make(2);
  Fail(0, 3);
  for (int seconds : {5, 10, 20, 40, 60, 60}) {
    now_ += absl::Seconds(seconds) - absl::Nanoseconds(1);
    EXPECT_EQ(State(0), kEjected) << seconds;
    now_ += absl::Nanoseconds(1);
    EXPECT_EQ(State(0), kReturning) << seconds;
    EXPECT_EQ(Fail(0), EjectionReason::kTrial);
  }
}

TEST_F(OutlierEjectionTest, RemembersForAWhileThatItWasEjected) {
  Make(2);
  Fail(0, 3);
  now_ += absl::Seconds(5);
  Call(0, CallOutcome::kGood);
  Fail(0, 3);
  now_ += absl::Seconds(9);
  EXPECT_EQ(State(0), kEjected) << "twice as long";
  now_ += absl::Seconds(1);
  Call(0, CallOutcome::kGood);
  now_ += absl::Seconds(60);
  Fail(0, 3);
  now_ += absl::Seconds(5);
  EXPECT_EQ(State(0), kReturning) << "it was good for long enough";
}

TEST_F(OutlierEjectionTest, IgnoresCallsOfTheTimeBeforeTheEjection) {
  Make(2);
  const uint64_t good = Begin(0);
  const uint64_t bad = Begin(0);
  Fail(0, 3);
  End(0, good, CallOutcome::kGood);
  EXPECT_EQ(State(0), kEjected);
  now_ += absl::Seconds(5);
  const uint64_t trial = Begin(0);
  End(0, bad, CallOutcome::kFailed);
  EXPECT_EQ(State(0), kOnTrial);
  End(0, trial, CallOutcome::kGood);
  EXPECT_EQ(State(0), kIn);
}

TEST_F(OutlierEjectionTest, TriesANewProcessAtOnce) {
  Make(2);
  Fail(0, 3);
  ejection_->OnRestart(WorkerId(0));
  EXPECT_EQ(State(0), kReturning);
  Fail(1, 2);
  ejection_->OnRestart(WorkerId(1));
  EXPECT_EQ(Fail(1, 2), std::nullopt) << "of another process";
}

TEST_F(OutlierEjectionTest, ATrialOfTheOldProcessSaysNothingOfTheNewOne) {
  Make(2);
  Fail(0, 3);
  now_ += absl::Seconds(5);
  EXPECT_EQ(State(0), kReturning);
  const uint64_t trial = ejection_->OnCallBegan(WorkerId(0), now_);
  EXPECT_EQ(State(0), kOnTrial);
  ejection_->OnRestart(WorkerId(0));
  EXPECT_EQ(State(0), kReturning);
  EXPECT_EQ(
      ejection_->OnCallEnded(WorkerId(0), trial, CallOutcome::kLost, now_),
      std::nullopt);
  EXPECT_EQ(State(0), kReturning);
  Call(0, CallOutcome::kGood);
  EXPECT_EQ(State(0), kIn);
}

TEST_F(OutlierEjectionTest, EjectsNoMoreThanTheShare) {
  Make(5);
  EXPECT_EQ(Fail(0, 3), EjectionReason::kInARow);
  EXPECT_EQ(Fail(1, 3), EjectionReason::kInARow);
  EXPECT_EQ(Fail(2, 10), std::nullopt);
  EXPECT_EQ(State(2), kIn);
  now_ += absl::Seconds(5);
  Call(0, CallOutcome::kGood);
  EXPECT_EQ(Fail(2), EjectionReason::kInARow) << "there is a place now";
}

TEST_F(OutlierEjectionTest, NeverEjectsTheOnlyWorker) {
  Make(1);
  EXPECT_EQ(Fail(0, 100), std::nullopt);
}

TEST_F(OutlierEjectionTest, CountsNobodyWhoDoesNotServe) {
  Make(2);
  ejection_->SetServing(WorkerId(1), false);
  EXPECT_EQ(Fail(0, 100), std::nullopt) << "nobody else is left";
  ejection_->SetServing(WorkerId(1), true);
  EXPECT_EQ(Fail(0), EjectionReason::kInARow);
  ejection_->SetServing(WorkerId(1), false);
  EXPECT_EQ(State(0), kIn) << "it must help out";
}

TEST_F(OutlierEjectionTest, LetsInWhoseTimeIsOverFirstWhenOthersLeave) {
  Make(4);
  Fail(0, 3);
  now_ += absl::Seconds(1);
  Fail(1, 3);
  ejection_->Leave(WorkerId(2));
  EXPECT_EQ(State(0), kIn);
  EXPECT_EQ(State(1), kEjected);
  EXPECT_EQ(State(2), kIn) << "nobody";
  EXPECT_EQ(End(2, 1, CallOutcome::kFailed), std::nullopt);
}

TEST_F(OutlierEjectionTest, EjectsNobodyWhereThatIsOff) {
  OutlierEjection::Options options = Options();
  options.failures_in_a_row = 0;
  Make(2, options);
  EXPECT_EQ(Fail(0, 100), std::nullopt);
}

// Whatever happens, no more are out than may be, and whoever is out comes back
// by good calls.
TEST_F(OutlierEjectionTest, HoldsItsInvariantsWhateverHappens) {
  constexpr uint64_t kSeed = 20261130;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  Make(8);
  std::map<uint64_t, uint32_t> open;  // Calls, and at whom.
  int num_ejected = 0;
  for (int i = 0; i < 20'000; ++i) {
    now_ += absl::Milliseconds(random() % 200);
    const auto worker = static_cast<uint32_t>(random() % 8);
    const uint64_t what = random() % 100;
    if (what < 50) {
      if (State(worker) == kIn || State(worker) == kReturning) {
        open[Begin(worker)] = worker;
      }
    } else if (what < 95 && !open.empty()) {
      const auto call = open.begin();
      const auto outcome = static_cast<CallOutcome>(random() % 5);
      num_ejected += End(call->second, call->first, outcome).has_value();
      open.erase(call);
    } else if (what < 98) {
      ejection_->SetServing(WorkerId(worker), random() % 4 > 0);
    } else {
      ejection_->OnRestart(WorkerId(worker));
    }
    ejection_->CheckInvariants();
  }
  EXPECT_GT(num_ejected, 100);
  for (uint32_t worker = 0; worker < 8; ++worker) {
    now_ += absl::Minutes(1);
    for (const auto& [call, at] : open) {
      if (at == worker) End(at, call, CallOutcome::kNone);
    }
    if (State(worker) == kReturning) Call(worker, CallOutcome::kGood);
    EXPECT_EQ(State(worker), kIn);
  }
}

}  // namespace
}  // namespace baton
