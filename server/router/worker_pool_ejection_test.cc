// A pool that leaves out who fails, and prefers who has the prompt's prefix.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "server/router/routing_policy.h"
#include "server/router/worker_pool.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

using v1::WORKER_ROLE_DECODE;
using v1::WORKER_ROLE_PREFILL;
using v1::WORKER_ROLE_UNIFIED;

v1::GetWorkerInfoResponse Info(v1::WorkerRole role, uint64_t incarnation = 1) {
  v1::GetWorkerInfoResponse info;
  info.set_role(role);
  info.set_fingerprint("f");
  info.set_max_context_tokens(1000);
  info.set_incarnation(incarnation);
  if (role != WORKER_ROLE_UNIFIED) info.add_kv_transports("tcp");
  return info;
}

class WorkerPoolEjectionTest : public ::testing::Test {
 protected:
  // All ready.
  void Make(const std::vector<v1::WorkerRole>& roles,
            const std::string& policy = "least_loaded") {
    WorkerPool::Options options;
    options.make_policy = [policy](v1::WorkerRole) {
      return MakeRoutingPolicy(policy);
    };
    options.ejection = {.failures_in_a_row = 3,
                        .first_ejection = absl::Seconds(5)};
    options.clock = &clock_;
    options.on_ejection = [this](EjectionReason why) { told_.push_back(why); };
    for (v1::WorkerRole role : roles) options.workers.push_back({"host", role});
    pool_ = std::make_unique<WorkerPool>(std::move(options));
    for (uint32_t i = 0; i < roles.size(); ++i) Probe(i, roles[i]);
  }
  void Probe(uint32_t worker, v1::WorkerRole role = WORKER_ROLE_UNIFIED,
             uint64_t incarnation = 1) {
    pool_->OnProbe(WorkerId(worker), Info(role, incarnation), {});
  }
  // A unified worker's.
  void End(const Route& route, CallOutcome outcome) {
    pool_->OnCallEnded(route.decode, route.decode_call, outcome);
    pool_->OnRequestEnded(route.decode, route.decode_rank, std::nullopt);
  }
  // So many requests end badly at the worker, wherever else they are sent.
  void FailAt(uint32_t worker, int times) {
    while (times > 0) {
      const Route route = *pool_->FindRoute({});
      const bool is_there = route.decode == WorkerId(worker);
      End(route, is_there ? CallOutcome::kFailed : CallOutcome::kGood);
      times -= is_there ? 1 : 0;
    }
  }
  // Where the next requests go that end well.
  std::vector<uint32_t> Next(int count) {
    std::vector<uint32_t> workers;
    for (int i = 0; i < count; ++i) {
      const Route route = *pool_->FindRoute({});
      workers.push_back(route.decode.value());
      End(route, CallOutcome::kGood);
    }
    return workers;
  }

  SimulatedClock clock_;
  std::vector<EjectionReason> told_;
  std::unique_ptr<WorkerPool> pool_;
};

TEST_F(WorkerPoolEjectionTest, SendsNothingToAWorkerThatIsEjected) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  FailAt(0, 3);
  EXPECT_EQ(told_, std::vector{EjectionReason::kInARow});
  EXPECT_EQ(pool_->num_ejected(), 1);
  EXPECT_EQ(pool_->state(WorkerId(0)), WorkerState::kReady) << "to its probes";
  EXPECT_EQ(Next(4), (std::vector<uint32_t>{1, 1, 1, 1}));
}

TEST_F(WorkerPoolEjectionTest, TriesItWithOneRequestOnceItsTimeIsOver) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  FailAt(0, 3);
  clock_.Advance(absl::Seconds(5));
  const Route trial = *pool_->FindRoute({});
  EXPECT_EQ(trial.decode, WorkerId(0));
  EXPECT_EQ(Next(3), (std::vector<uint32_t>{1, 1, 1})) << "one at a time";
  pool_->OnCallAnswered(trial.decode, trial.decode_call);
  EXPECT_EQ(pool_->num_ejected(), 0);
  const Route next = *pool_->FindRoute({});
  EXPECT_EQ(next.decode, WorkerId(1)) << "the trial goes on";
  EXPECT_EQ(pool_->FindRoute({})->decode, WorkerId(0));
}

TEST_F(WorkerPoolEjectionTest, TriesItWithNoRequestThatHasFailed) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  FailAt(0, 3);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(pool_->FindRoute({.avoid = {WorkerId(7)}})->decode, WorkerId(1));
  EXPECT_EQ(pool_->FindRoute({})->decode, WorkerId(0));
}

TEST_F(WorkerPoolEjectionTest, EjectsItAgainWhenTheTrialFails) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  FailAt(0, 3);
  clock_.Advance(absl::Seconds(5));
  FailAt(0, 1);
  EXPECT_EQ(told_.back(), EjectionReason::kTrial);
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(Next(2), (std::vector<uint32_t>{1, 1}));
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(Next(1), std::vector<uint32_t>{0});
}

TEST_F(WorkerPoolEjectionTest, TriesANewProcessAtOnce) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  FailAt(0, 3);
  Probe(0, WORKER_ROLE_UNIFIED, /*incarnation=*/2);
  EXPECT_EQ(Next(1), std::vector<uint32_t>{0});
  EXPECT_EQ(pool_->num_ejected(), 0);
}

TEST_F(WorkerPoolEjectionTest, AsksAnEjectedOneWhereNobodyElseIsLeft) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  FailAt(0, 3);
  pool_->OnProbeFailed(WorkerId(1), absl::UnavailableError(""));
  EXPECT_EQ(pool_->num_ejected(), 0);
  EXPECT_EQ(pool_->FindRoute({})->decode, WorkerId(0));
}

TEST_F(WorkerPoolEjectionTest, AnEjectedOneThatFitsAloneIsTheLastChoice) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  FailAt(0, 3);
  v1::GetWorkerInfoResponse small = Info(WORKER_ROLE_UNIFIED);
  small.set_max_context_tokens(10);
  pool_->OnProbe(WorkerId(1), small, {});
  EXPECT_EQ(pool_->FindRoute({.context_tokens = 100})->decode, WorkerId(0));
  EXPECT_FALSE(
      pool_->FindRoute({.worst = RouteRank::kReady, .context_tokens = 100})
          .ok());
}

// A worker that drains is not one that died.
TEST_F(WorkerPoolEjectionTest, SaysWhatAFailedProbeSaid) {
  Make({WORKER_ROLE_UNIFIED});
  testing::internal::CaptureStderr();
  pool_->OnProbeFailed(WorkerId(0), absl::UnavailableError("not\nserving"));
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "worker host unhealthy: UNAVAILABLE: not\\nserving"),
            std::string::npos);
}

// --- Workers that are full.

TEST_F(WorkerPoolEjectionTest, SendsNothingToAFullWorkerWhileAnotherIsReady) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  pool_->OnFull(WorkerId(0), absl::Seconds(2));
  EXPECT_EQ(Next(4), (std::vector<uint32_t>{1, 1, 1, 1}));
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Next(4), (std::vector<uint32_t>{1, 0, 1, 0}));
}

TEST_F(WorkerPoolEjectionTest, AsksAFullWorkerWhereNobodyElseIsReady) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  pool_->OnFull(WorkerId(0), absl::Seconds(2));
  pool_->OnSuspect(WorkerId(1));
  EXPECT_EQ(Next(2), (std::vector<uint32_t>{0, 0}));
}

TEST_F(WorkerPoolEjectionTest, BelievesNoWorkerThatItIsFullForLong) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  pool_->OnFull(WorkerId(0), absl::InfiniteDuration());
  clock_.Advance(absl::Seconds(5));
  EXPECT_EQ(Next(2), (std::vector<uint32_t>{0, 1}));
}

TEST_F(WorkerPoolEjectionTest, ANewProcessIsNotFull) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  pool_->OnFull(WorkerId(0), absl::Seconds(2));
  Probe(0, WORKER_ROLE_UNIFIED, /*incarnation=*/2);
  EXPECT_EQ(Next(2), (std::vector<uint32_t>{0, 1}));
}

// The trial would only be refused again and again.
TEST_F(WorkerPoolEjectionTest, TriesNoEjectedWorkerWhileItIsFull) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  FailAt(0, 3);
  clock_.Advance(absl::Seconds(5));
  pool_->OnFull(WorkerId(0), absl::Seconds(2));
  EXPECT_EQ(Next(2), (std::vector<uint32_t>{1, 1}));
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(Next(1), (std::vector<uint32_t>{0}));
}

TEST_F(WorkerPoolEjectionTest, AsksNobodyWhoIsExcluded) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  EXPECT_EQ(pool_->FindRoute({.exclude = {WorkerId(0)}})->decode, WorkerId(1));
  EXPECT_FALSE(pool_->FindRoute({.exclude = {WorkerId(0), WorkerId(1)}}).ok());
}

TEST_F(WorkerPoolEjectionTest, CountsEachRoleForItself) {
  Make({WORKER_ROLE_PREFILL, WORKER_ROLE_PREFILL, WORKER_ROLE_DECODE});
  for (int i = 0; i < 3; ++i) {
    const Route route = *pool_->FindRoute({});
    pool_->OnCallEnded(*route.prefill, route.prefill_call, CallOutcome::kGood);
    pool_->OnCallEnded(route.decode, route.decode_call, CallOutcome::kFailed);
  }
  EXPECT_EQ(pool_->num_ejected(), 0) << "the only decode worker";
  for (int failed = 0; failed < 3;) {
    const Route route = *pool_->FindRoute({});
    const bool is_first = *route.prefill == WorkerId(0);
    failed += is_first ? 1 : 0;
    pool_->OnCallEnded(*route.prefill, route.prefill_call,
                       is_first ? CallOutcome::kFailed : CallOutcome::kGood);
  }
  EXPECT_EQ(pool_->num_ejected(), 1);
  EXPECT_EQ(pool_->FindRoute({})->prefill, WorkerId(1));
}

TEST_F(WorkerPoolEjectionTest, KnowsNoCallOfAWorkerThatLeft) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  const Route route = *pool_->FindRoute({});
  pool_->Leave(route.decode);
  pool_->OnCallAnswered(route.decode, route.decode_call);
  End(route, CallOutcome::kFailed);
  EXPECT_EQ(pool_->num_ejected(), 0);
}

TEST_F(WorkerPoolEjectionTest, SendsAPrefixWhereItWas) {
  Make({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED},
       "prefix_affinity");
  const auto prompt = [](uint32_t token) {
    return PrefixKeysOf(std::vector<uint32_t>(128, token), "");
  };
  const auto send = [&](const std::vector<PrefixKey>& keys) {
    const Route route = *pool_->FindRoute({.prefix = keys});
    End(route, CallOutcome::kGood);
    return route.decode;
  };
  const WorkerId first = send(prompt(1));
  const WorkerId second = send(prompt(2));
  EXPECT_NE(first, second);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(send(prompt(1)), first);
    EXPECT_EQ(send(prompt(2)), second);
  }
  Probe(first.value(), WORKER_ROLE_UNIFIED, /*incarnation=*/2);
  EXPECT_NE(send(prompt(1)), first) << "its cache is gone";
}

}  // namespace
}  // namespace baton
