// What the steps of a group cost; that they are the right ones, and their
// tokens too, is for the simulation.
#include "engine/group_stepper.h"

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "comm/step_vote.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

constexpr absl::Duration kMs = absl::Milliseconds(1);

// A process with one rank; what it sends waits for the test.
struct Process {
  Process(uint32_t index, SimulatedClock* clock)
      : rank(FakeRank::Options{}, clock),
        stepper({.vote = {.num_processes = 2, .process = index},
                 .send = [this](const VoteMessage& m) { sent.push_back(m); },
                 .amend_ballot =
                     [this](Ballot* ballot) { ballot->draining = draining; },
                 .on_step =
                     [this](const StepDecision& d) { decisions.push_back(d); },
                 .observer =
                     [this](const GroupStepStats& s) { steps.push_back(s); }},
                {&rank.engine()}, clock) {}

  void Turn() {
    while (stepper.Turn()) {
    }
  }

  FakeRank rank;
  bool draining = false;
  std::vector<VoteMessage> sent;
  std::vector<StepDecision> decisions;
  std::vector<GroupStepStats> steps;
  GroupStepper stepper;
};

class GroupStepperTest : public testing::Test {
 protected:
  // Our device's next step takes so long.
  void SetStepTime(absl::Duration time) {
    ours_.rank.stream().set_task_time(time);
  }
  void Submit(uint32_t num_tokens) {
    ASSERT_TRUE(ours_.rank.engine()
                    .Submit(MakeRequest(++num_requests_, 5, num_tokens),
                            &sinks_.emplace_back())
                    .ok());
  }
  // Their vote's next round, `delay` after ours.
  void Answer(absl::Duration delay) {
    ours_.Turn();
    clock_.Advance(delay);
    PollDevices();
    Exchange();
  }
  void PollDevices() {
    for (Process* process : {&ours_, &theirs_}) {
      while (process->rank.stream().Poll()) {
      }
    }
  }
  void Exchange() {
    Deliver(&ours_, &theirs_);
    theirs_.Turn();
    Deliver(&theirs_, &ours_);
    ours_.Turn();
  }
  static void Deliver(Process* from, Process* to) {
    for (const VoteMessage& message : std::exchange(from->sent, {})) {
      to->stepper.OnMessage(message);
    }
  }
  void RunUntilIdle() {
    for (int i = 0; i < 100 && !Idle(); ++i) Answer(kMs);
    ASSERT_TRUE(Idle());
  }
  bool Idle() {
    return ours_.rank.engine().idle() && theirs_.rank.engine().idle() &&
           ours_.stepper.asleep() && theirs_.stepper.asleep();
  }

  SimulatedClock clock_;
  std::deque<RecordingTokenSink> sinks_;
  Process ours_{0, &clock_};
  Process theirs_{1, &clock_};
  uint64_t num_requests_ = 0;
};

TEST_F(GroupStepperTest, WhatAPrefillWaitsForIsBothRoundsOfItsVote) {
  Submit(1);
  ours_.Turn();
  clock_.Advance(3 * kMs);
  Deliver(&ours_, &theirs_);
  ASSERT_TRUE(theirs_.stepper.Turn());  // The ballot alone.
  Deliver(&theirs_, &ours_);
  ours_.Turn();
  clock_.Advance(2 * kMs);
  Exchange();
  ASSERT_EQ(ours_.steps.size(), 1u);
  const GroupStepStats& step = ours_.steps.front();
  EXPECT_EQ(step.type, VotedStep::kPrefill);
  EXPECT_EQ(step.cause, PrefillCause::kUnopposed);
  EXPECT_EQ(step.vote_wait, 5 * kMs);
  EXPECT_EQ(step.exposed_wait, 5 * kMs);
  EXPECT_EQ(step.empty_ranks, 0u);
  ASSERT_EQ(theirs_.steps.size(), 1u);
  EXPECT_EQ(theirs_.steps.front().vote_wait, 2 * kMs);
  EXPECT_EQ(theirs_.steps.front().empty_ranks, 1u);
  RunUntilIdle();
  EXPECT_EQ(ours_.steps.size(), 1u);
}

TEST_F(GroupStepperTest, AWaitBehindTheDevicesWorkIsNotExposed) {
  SetStepTime(10 * kMs);
  Submit(2);
  Answer(kMs);
  ASSERT_EQ(ours_.steps.size(), 1u);
  SetStepTime(absl::ZeroDuration());
  Answer(4 * kMs);
  ASSERT_EQ(ours_.steps.size(), 2u);
  EXPECT_EQ(ours_.steps.back().type, VotedStep::kDecode);
  EXPECT_EQ(ours_.steps.back().vote_wait, 4 * kMs);
  EXPECT_EQ(ours_.steps.back().exposed_wait, absl::ZeroDuration());
  RunUntilIdle();
}

TEST_F(GroupStepperTest, OfAWaitThatOutlastsTheDevicesWorkTheRestIsExposed) {
  SetStepTime(kMs);
  Submit(2);
  Answer(kMs);
  ASSERT_EQ(ours_.steps.size(), 1u);
  // The forward and the sampling, a task each, and then nothing.
  ours_.Turn();
  for (int i = 0; i < 2; ++i) {
    clock_.Advance(kMs);
    PollDevices();
  }
  Answer(7 * kMs);
  ASSERT_EQ(ours_.steps.size(), 2u);
  EXPECT_EQ(ours_.steps.back().vote_wait, 9 * kMs);
  EXPECT_EQ(ours_.steps.back().exposed_wait, 7 * kMs);
  RunUntilIdle();
}

TEST_F(GroupStepperTest, MessagesThatAreDroppedAreToldWithTheNextStep) {
  ours_.stepper.OnMessage({.epoch = EpochId(9), .step = StepId(1)});
  ours_.stepper.OnMessage({.step = StepId(77), .process = 1});
  Submit(2);
  RunUntilIdle();
  ASSERT_EQ(ours_.steps.size(), 2u);
  EXPECT_EQ(ours_.steps[0].dropped_messages, 2u);
  EXPECT_EQ(ours_.steps[1].dropped_messages, 0u);
}

TEST_F(GroupStepperTest, ADeviceWithoutWorkIsNotIdle) {
  Submit(1);
  RunUntilIdle();
  clock_.Advance(absl::Hours(1));
  Submit(1);
  RunUntilIdle();
  for (const Process* process : {&ours_, &theirs_}) {
    ASSERT_EQ(process->rank.steps().size(), 2u);
    EXPECT_EQ(process->rank.steps().back().device_idle, absl::ZeroDuration());
  }
}

TEST_F(GroupStepperTest, CountersAreTheSumOfTheSteps) {
  Submit(3);
  RunUntilIdle();
  const GroupCounters& counters = theirs_.stepper.counters();
  EXPECT_EQ(counters.prefill_steps, 1u);
  EXPECT_EQ(counters.decode_steps, 2u);
  EXPECT_EQ(counters.empty_rank_steps, 3u);
  EXPECT_EQ(counters.prefill_fallbacks, 0u);
}

TEST_F(GroupStepperTest, AnIdleProcessSaysOnceThatItDrains) {
  ours_.Turn();
  ASSERT_TRUE(ours_.sent.empty());
  ours_.draining = true;
  ours_.Turn();
  ASSERT_EQ(ours_.sent.size(), 1u);
  EXPECT_TRUE(ours_.sent.front().ballot.draining);
  EXPECT_TRUE(ours_.sent.front().ballot.idle());
  Exchange();
  for (const Process* process : {&ours_, &theirs_}) {
    ASSERT_EQ(process->decisions.size(), 1u);
    EXPECT_EQ(process->decisions.back().type, VotedStep::kNone);
    EXPECT_FALSE(process->decisions.back().draining);
  }
  EXPECT_TRUE(Idle());
  ours_.Turn();
  EXPECT_TRUE(ours_.sent.empty());
}

TEST_F(GroupStepperTest, OnceAllDrainEachLearnsOfIt) {
  ours_.draining = true;
  ours_.Turn();
  Exchange();
  theirs_.draining = true;
  theirs_.Turn();
  Deliver(&theirs_, &ours_);
  ours_.Turn();
  Exchange();
  for (const Process* process : {&ours_, &theirs_}) {
    ASSERT_EQ(process->decisions.size(), 2u);
    EXPECT_EQ(process->decisions.back().type, VotedStep::kNone);
    EXPECT_TRUE(process->decisions.back().draining);
  }
  EXPECT_TRUE(Idle());
}

TEST_F(GroupStepperTest, AProcessThatDrainsStepsOnForOneThatWorks) {
  theirs_.draining = true;
  theirs_.Turn();
  Deliver(&theirs_, &ours_);
  ours_.draining = true;
  Submit(4);
  RunUntilIdle();
  EXPECT_EQ(sinks_.front().code(), absl::StatusCode::kOk);
  EXPECT_EQ(theirs_.steps.size(), 4u);
  EXPECT_EQ(theirs_.decisions, ours_.decisions);
  EXPECT_EQ(theirs_.decisions.back().type, VotedStep::kNone);
  EXPECT_TRUE(theirs_.decisions.back().draining);
}

TEST_F(GroupStepperTest, WhoDrainsNoMoreSaysThatToo) {
  ours_.draining = true;
  ours_.Turn();
  Exchange();
  ours_.draining = false;
  ours_.Turn();
  ASSERT_EQ(ours_.sent.size(), 1u);
  EXPECT_FALSE(ours_.sent.front().ballot.draining);
  Exchange();
  EXPECT_TRUE(Idle());
}

TEST_F(GroupStepperTest, AGroupWithOnlyPausedRequestsSleepsUntilOneGoesOn) {
  Submit(30);
  for (int i = 0; i < 100 && sinks_[0].tokens.size() < 5; ++i) Answer(kMs);
  ASSERT_GE(sinks_[0].tokens.size(), 5u);
  PauseCommand pause = {.id = MakeRequest(1, 5, 30).id, .paused = true};
  ours_.rank.engine().SetPaused(pause);
  for (int i = 0; i < 10; ++i) Answer(kMs);
  EXPECT_TRUE(ours_.stepper.asleep());
  EXPECT_TRUE(theirs_.stepper.asleep());
  EXPECT_FALSE(ours_.rank.engine().idle());
  EXPECT_FALSE(ours_.stepper.Turn());
  EXPECT_TRUE(ours_.sent.empty());
  pause.paused = false;
  ours_.rank.engine().SetPaused(pause);
  RunUntilIdle();
  EXPECT_EQ(
      sinks_[0].tokens,
      ExpectedOf(FakeModelRunner::Options(), MakeRequest(1, 5, 30)).tokens);
}

}  // namespace
}  // namespace baton
