#include "server/router/worker_connections.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/router/fake_worker_for_test.h"
#include "server/router/routing_policy.h"

namespace baton {
namespace {

v1::GetWorkerInfoResponse Info() {
  v1::GetWorkerInfoResponse info;
  info.set_role(v1::WORKER_ROLE_UNIFIED);
  info.set_text_hash("text");
  return info;
}

class WorkerConnectionsTest : public ::testing::Test {
 protected:
  static WorkerAddress Where(const FakeWorker& worker) {
    return {worker.address(), v1::WORKER_ROLE_UNIFIED};
  }
  bool Becomes(WorkerId worker, WorkerState state) {
    return WaitFor([&] { return pool_.state(worker) == state; });
  }

  FakeWorker first_{Info()};
  FakeWorker second_{Info()};
  WorkerPool pool_{
      {.workers = {Where(first_)},
       .text_hash = "text",
       .vocab_size = 0,
       .make_policy =
           [](v1::WorkerRole) { return MakeRoutingPolicy("round_robin"); },
       .on_gone = [this](WorkerId id) { connections_->OnGone(id); }}};
  std::optional<WorkerConnections> connections_{
      std::in_place, WorkerProber::Options(), &pool_};
};

TEST_F(WorkerConnectionsTest, ProbesThePoolsFirstMembersAndThoseWhoJoin) {
  EXPECT_TRUE(Becomes(WorkerId(0), WorkerState::kReady));
  connections_->SetWorkers({Where(first_), Where(second_)});
  EXPECT_TRUE(WaitFor([&] { return pool_.members().size() == 2; }));
  EXPECT_TRUE(Becomes(WorkerId(1), WorkerState::kReady));
  EXPECT_EQ(connections_->Use(WorkerId(1)).client().address(),
            second_.address());
}

TEST_F(WorkerConnectionsTest, OneThatLeftLivesOnUntilNobodyUsesIt) {
  EXPECT_TRUE(Becomes(WorkerId(0), WorkerState::kReady));
  const Route route = *pool_.FindRoute({});
  std::optional<WorkerUse> use(connections_->Use(route.decode));
  connections_->SetWorkers({Where(second_)});
  EXPECT_TRUE(Becomes(WorkerId(0), WorkerState::kLeft));
  EXPECT_TRUE(Becomes(WorkerId(1), WorkerState::kReady));
  EXPECT_EQ(pool_.FindRoute({})->decode, WorkerId(1));
  EXPECT_EQ(pool_.num_in_flight(), 2);

  pool_.OnRequestEnded(WorkerId(0), 0, std::nullopt);
  EXPECT_EQ(pool_.num_in_flight(), 1);
  EXPECT_EQ(connections_->size(), 2u) << "its call may still abort a sample";
  EXPECT_EQ(use->client().address(), first_.address());
  use.reset();
  EXPECT_EQ(connections_->size(), 1u);
}

TEST_F(WorkerConnectionsTest, OneThatLeftUnusedIsGoneAtOnce) {
  EXPECT_TRUE(Becomes(WorkerId(0), WorkerState::kReady));
  connections_->SetWorkers({});
  EXPECT_TRUE(WaitFor([&] { return connections_->size() == 0; }));
  EXPECT_FALSE(pool_.FindRoute({}).ok());
  connections_->ProbeSoon(WorkerId(0));  // A request that failed there.
}

TEST_F(WorkerConnectionsTest, OneThatComesBackIsAnotherWorker) {
  EXPECT_TRUE(Becomes(WorkerId(0), WorkerState::kReady));
  const Route route = *pool_.FindRoute({});
  connections_->SetWorkers({});
  EXPECT_TRUE(Becomes(WorkerId(0), WorkerState::kLeft));
  connections_->SetWorkers({Where(first_)});
  EXPECT_TRUE(Becomes(WorkerId(1), WorkerState::kReady));
  EXPECT_EQ(connections_->size(), 2u);
  pool_.OnRequestEnded(route.decode, 0, std::nullopt);
  EXPECT_EQ(connections_->size(), 1u);
  EXPECT_EQ(pool_.state(WorkerId(1)), WorkerState::kReady);
}

TEST_F(WorkerConnectionsTest,
       OneThatDidNotFitIsJudgedAnewWhenTheOthersHaveLeft) {
  v1::GetWorkerInfoResponse next = Info();
  next.set_fingerprint("next");
  FakeWorker third(next);
  v1::GetWorkerInfoResponse wrong = Info();
  wrong.set_text_hash("another text");
  FakeWorker fourth(wrong);
  EXPECT_TRUE(Becomes(WorkerId(0), WorkerState::kReady));
  connections_->SetWorkers({Where(first_), Where(third), Where(fourth)});
  EXPECT_TRUE(Becomes(WorkerId(1), WorkerState::kRefused));
  EXPECT_TRUE(Becomes(WorkerId(2), WorkerState::kRefused));
  connections_->SetWorkers({Where(third), Where(fourth)});
  EXPECT_TRUE(Becomes(WorkerId(1), WorkerState::kReady));
  EXPECT_EQ(pool_.Served()->fingerprint, "next");
  EXPECT_EQ(pool_.state(WorkerId(2)), WorkerState::kRefused);
  EXPECT_EQ(third.num_infos(), 1) << "nobody asks it again";
  connections_.reset();  // It follows both.
}

// Debian's Abseil ends a test whose locks are taken in a circle.
TEST_F(WorkerConnectionsTest, AsksOneAndForgetsAnotherWithLocksInOneOrder) {
  connections_->SetWorkers({Where(first_), Where(second_)});
  EXPECT_TRUE(Becomes(WorkerId(0), WorkerState::kReady));
  EXPECT_TRUE(WaitFor([&] { return pool_.members().size() == 2; }));
  pool_.OnSuspect(WorkerId(0));
  connections_->ProbeSoon(WorkerId(0));
  EXPECT_TRUE(Becomes(WorkerId(0), WorkerState::kReady));
  connections_->SetWorkers({Where(first_)});
  EXPECT_TRUE(WaitFor([&] { return connections_->size() == 1; }));
}

TEST_F(WorkerConnectionsTest, TheNewestListCounts) {
  for (int i = 0; i < 20; ++i) {
    connections_->SetWorkers({Where(second_)});
    connections_->SetWorkers({Where(first_)});
  }
  EXPECT_TRUE(WaitFor([&] {
    const auto members = pool_.members();
    return members.size() == 1 &&
           members[0].where.address == first_.address() &&
           connections_->size() == 1;
  }));
}

}  // namespace
}  // namespace baton
