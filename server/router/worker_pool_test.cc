#include "server/router/worker_pool.h"

#include <array>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

using enum WorkerState;
using v1::WORKER_ROLE_DECODE;
using v1::WORKER_ROLE_PREFILL;
using v1::WORKER_ROLE_UNIFIED;

TEST(WorkerStateTest, MovesOnlyAlongTheTable) {
  const std::set<std::pair<WorkerState, WorkerState>> illegal = {
      {kUnknown, kUnknown},   {kReady, kUnknown},     {kSuspect, kUnknown},
      {kUnhealthy, kUnknown}, {kRefused, kUnknown},   {kUnknown, kSuspect},
      {kRefused, kSuspect},   {kUnhealthy, kSuspect}, {kLeft, kUnknown},
      {kLeft, kReady},        {kLeft, kSuspect},      {kLeft, kUnhealthy},
      {kLeft, kRefused},      {kLeft, kLeft}};
  for (int from = 0; from < kNumWorkerStates; ++from) {
    for (int to = 0; to < kNumWorkerStates; ++to) {
      const std::pair edge(static_cast<WorkerState>(from),
                           static_cast<WorkerState>(to));
      EXPECT_EQ(IsLegalTransition(edge.first, edge.second),
                !illegal.contains(edge))
          << WorkerStateName(edge.first) << " to "
          << WorkerStateName(edge.second);
    }
  }
}

TEST(WorkerStateTest, HasANameForEachState) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumWorkerStates; ++i) {
    names.insert(WorkerStateName(static_cast<WorkerState>(i)));
  }
  EXPECT_EQ(names.size(), size_t{kNumWorkerStates});
}

WorkerPool MakePool(std::vector<v1::WorkerRole> roles,
                    std::function<void(bool)> on_ready_change = {}) {
  WorkerPool::Options options;
  options.text_hash = "text";
  options.vocab_size = 100;
  options.make_policy = [](v1::WorkerRole) {
    return MakeRoutingPolicy("least_loaded");
  };
  options.on_ready_change = std::move(on_ready_change);
  for (size_t i = 0; i < roles.size(); ++i) {
    options.workers.push_back({"host:" + std::to_string(i), roles[i]});
  }
  return WorkerPool(std::move(options));
}

v1::GetWorkerInfoResponse Info(v1::WorkerRole role) {
  v1::GetWorkerInfoResponse info;
  info.set_role(role);
  info.set_text_hash("text");
  info.set_fingerprint("f");
  info.set_vocab_size(100);
  info.set_max_context_tokens(1000);
  info.set_incarnation(1);
  if (role != WORKER_ROLE_UNIFIED) info.add_kv_transports("tcp");
  return info;
}

v1::GetLoadResponse Load(uint32_t running, uint32_t waiting = 0) {
  v1::GetLoadResponse load;
  load.set_running_requests(running);
  load.set_waiting_requests(waiting);
  return load;
}

WorkerId Id(uint32_t id) { return WorkerId(id); }

TEST(WorkerPoolTest, IsReadyWithAPairOrAUnifiedWorker) {
  WorkerPool pool =
      MakePool({WORKER_ROLE_PREFILL, WORKER_ROLE_DECODE, WORKER_ROLE_UNIFIED});
  const absl::Status nobody = pool.Served().status();
  EXPECT_TRUE(absl::IsUnavailable(nobody));
  EXPECT_TRUE(RetryDelay(nobody).has_value());
  EXPECT_TRUE(absl::IsUnavailable(pool.FindRoute({}).status()));
  pool.OnProbe(Id(0), Info(WORKER_ROLE_PREFILL), Load(0));
  EXPECT_FALSE(pool.Served().ok()) << "a prefill worker alone";
  pool.OnProbe(Id(1), Info(WORKER_ROLE_DECODE), Load(0));
  EXPECT_TRUE(pool.Served().ok());
  pool.OnProbeFailed(Id(0), absl::UnavailableError(""));
  EXPECT_TRUE(pool.Served().ok()) << "what was served last";
  EXPECT_TRUE(absl::IsUnavailable(pool.FindRoute({}).status()));
  pool.OnProbe(Id(2), Info(WORKER_ROLE_UNIFIED), Load(0));
  EXPECT_TRUE(pool.Served().ok());
  EXPECT_EQ(pool.FindRoute({})->prefill, std::nullopt);
}

TEST(WorkerPoolTest, TellsEachChangeOfReadinessOnce) {
  std::vector<bool> told;
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED},
                             [&told](bool ready) { told.push_back(ready); });
  pool.OnProbeFailed(Id(0), absl::UnavailableError(""));
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  pool.OnProbe(Id(1), Info(WORKER_ROLE_UNIFIED), Load(0));
  pool.OnSuspect(Id(0));
  pool.OnProbeFailed(Id(0), absl::UnavailableError(""));
  EXPECT_EQ(told, (std::vector<bool>{true}));
  pool.OnProbeFailed(Id(1), absl::UnavailableError(""));
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  EXPECT_EQ(told, (std::vector<bool>{true, false, true}));
}

TEST(WorkerPoolTest, WaitsUntilSomebodyCanServe) {
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED});
  std::thread prober([&pool] {
    pool.OnProbeFailed(Id(0), absl::UnavailableError(""));
    pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  });
  pool.WaitUntilReady();
  EXPECT_EQ(pool.state(Id(0)), kReady);
  prober.join();
}

TEST(WorkerPoolTest, RefusesAWorkerThatDoesNotFit) {
  using Edit = void (*)(v1::GetWorkerInfoResponse*);
  const Edit edits[] = {
      [](v1::GetWorkerInfoResponse* info) { info->set_text_hash("other"); },
      [](v1::GetWorkerInfoResponse* info) { info->set_fingerprint("other"); },
      [](v1::GetWorkerInfoResponse* info) { info->set_vocab_size(101); },
      [](v1::GetWorkerInfoResponse* info) { info->clear_kv_transports(); },
      [](v1::GetWorkerInfoResponse* info) {
        info->set_role(WORKER_ROLE_UNIFIED);
      },
  };
  for (const Edit edit : edits) {
    WorkerPool pool = MakePool({WORKER_ROLE_PREFILL, WORKER_ROLE_DECODE});
    pool.OnProbe(Id(0), Info(WORKER_ROLE_PREFILL), Load(0));
    v1::GetWorkerInfoResponse info = Info(WORKER_ROLE_DECODE);
    edit(&info);
    pool.OnProbe(Id(1), info, Load(0));
    EXPECT_EQ(pool.state(Id(1)), kRefused) << info.ShortDebugString();
    EXPECT_EQ(pool.state(Id(0)), kReady);
    pool.OnProbe(Id(1), Info(WORKER_ROLE_DECODE), Load(0));
    EXPECT_EQ(pool.state(Id(1)), kReady) << "another process answers now";
  }
}

TEST(WorkerPoolTest, NamesBothValuesOfARefusalOnce) {
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED});
  v1::GetWorkerInfoResponse info = Info(WORKER_ROLE_UNIFIED);
  info.set_text_hash("theirs");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) pool.OnProbe(Id(0), info, Load(0));
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string line =
      "worker host:0 refused: text_hash theirs differs from text";
  EXPECT_NE(log.find(line), std::string::npos) << log;
  EXPECT_EQ(log.find(line), log.rfind(line)) << log;
}

TEST(WorkerPoolTest, NamesTheRoleThatAWorkerHasAndTheListedOne) {
  WorkerPool pool = MakePool({WORKER_ROLE_PREFILL});
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  EXPECT_EQ(pool.Served().status().message(),
            "no worker can serve; refused for role (unified, listed as "
            "prefill)");
}

TEST(WorkerPoolTest, RefusesAPairWithoutATransportInCommon) {
  WorkerPool pool =
      MakePool({WORKER_ROLE_PREFILL, WORKER_ROLE_DECODE, WORKER_ROLE_PREFILL});
  v1::GetWorkerInfoResponse shm = Info(WORKER_ROLE_DECODE);
  shm.set_kv_transports(0, "shm@h");
  testing::internal::CaptureStderr();
  pool.OnProbe(Id(0), Info(WORKER_ROLE_PREFILL), Load(0));
  for (int i = 0; i < 3; ++i) pool.OnProbe(Id(1), shm, Load(0));
  const std::string log = testing::internal::GetCapturedStderr();
  const std::string line =
      "worker host:1 refused: kv_transports shm@h has nothing in common with "
      "tcp of host:0";
  EXPECT_NE(log.find(line), std::string::npos) << log;
  EXPECT_EQ(log.find(line), log.rfind(line)) << log;
  const absl::Status status = pool.Served().status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(status.message(), "no worker can serve; refused for kv_transports");

  shm.add_kv_transports("tcp");
  pool.OnProbe(Id(1), shm, Load(0));
  EXPECT_TRUE(pool.Served().ok()) << "one in common is enough";
  v1::GetWorkerInfoResponse other = Info(WORKER_ROLE_PREFILL);
  other.set_kv_transports(0, "shm@h");
  pool.OnProbe(Id(2), other, Load(0));
  EXPECT_EQ(pool.state(Id(2)), kReady) << "it fits the one it may meet";
}

TEST(WorkerPoolTest, TakesANewFingerprintWhenNobodyServesTheOldOne) {
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  v1::GetWorkerInfoResponse next = Info(WORKER_ROLE_UNIFIED);
  next.set_fingerprint("g");
  next.set_incarnation(2);
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  pool.OnProbe(Id(1), next, Load(0));
  EXPECT_EQ(pool.state(Id(1)), kRefused);
  pool.OnProbeFailed(Id(0), absl::UnavailableError(""));
  pool.OnProbe(Id(1), next, Load(0));
  EXPECT_EQ(pool.state(Id(1)), kReady);
  EXPECT_EQ(pool.Served()->fingerprint, "g");
  pool.OnProbe(Id(0), next, Load(0));
  EXPECT_EQ(pool.state(Id(0)), kReady);
}

TEST(WorkerPoolTest, ServesTheSmallestContext) {
  WorkerPool pool = MakePool({WORKER_ROLE_PREFILL, WORKER_ROLE_DECODE});
  v1::GetWorkerInfoResponse small = Info(WORKER_ROLE_DECODE);
  small.set_max_context_tokens(10);
  pool.OnProbe(Id(0), Info(WORKER_ROLE_PREFILL), Load(0));
  pool.OnProbe(Id(1), small, Load(0));
  EXPECT_EQ(pool.Served()->max_context_tokens, 10u);
}

TEST(WorkerPoolTest, CountsRequestsAtBothWorkersUntilTheyEnd) {
  WorkerPool pool =
      MakePool({WORKER_ROLE_PREFILL, WORKER_ROLE_DECODE, WORKER_ROLE_DECODE});
  pool.OnProbe(Id(0), Info(WORKER_ROLE_PREFILL), Load(0));
  pool.OnProbe(Id(1), Info(WORKER_ROLE_DECODE), Load(5, 5));
  pool.OnProbe(Id(2), Info(WORKER_ROLE_DECODE), Load(8));
  for (int i = 0; i < 2; ++i) {
    const Route route = *pool.FindRoute({});
    EXPECT_EQ(route.prefill, Id(0));
    EXPECT_EQ(route.decode, Id(2));
    EXPECT_EQ(route.fingerprint, "f");
  }
  EXPECT_EQ(pool.num_in_flight(), 4);
  // 10 each now: turns decide.
  const WorkerId third = pool.FindRoute({})->decode;
  const WorkerId fourth = pool.FindRoute({})->decode;
  EXPECT_NE(third, fourth);
  pool.OnRequestEnded(Id(2), 0, Load(0));
  EXPECT_EQ(pool.FindRoute({})->decode, Id(2));
  EXPECT_EQ(pool.num_in_flight(), 9);
}

TEST(WorkerPoolTest, PicksTheRankWithTheLeastLoadOfAllWorkers) {
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  v1::GetWorkerInfoResponse info = Info(WORKER_ROLE_UNIFIED);
  info.set_num_local_ranks(3);
  v1::GetLoadResponse load = Load(12);
  for (const uint32_t running : {6, 1, 5}) {
    load.add_ranks()->set_running_requests(running);
  }
  pool.OnProbe(Id(0), info, load);
  pool.OnProbe(Id(1), Info(WORKER_ROLE_UNIFIED), Load(3));
  for (const auto& [worker, rank] :
       std::vector<std::pair<WorkerId, uint32_t>>{{Id(0), 1}, {Id(0), 1}}) {
    const Route route = *pool.FindRoute({});
    EXPECT_EQ(route.decode, worker);
    EXPECT_EQ(route.decode_rank, rank);
  }
  // 6, 3, 5 and 3 now.
  EXPECT_NE(pool.FindRoute({})->decode, pool.FindRoute({})->decode);
  load.mutable_ranks(2)->set_running_requests(0);
  pool.OnRequestEnded(Id(0), 1, load);
  EXPECT_EQ(pool.FindRoute({})->decode_rank, 2u);
  EXPECT_EQ(pool.num_in_flight(), 4);
  // Back with fewer ranks than before: the requests of one that is gone end as
  // well.
  info.set_num_local_ranks(1);
  info.set_incarnation(2);
  pool.OnProbe(Id(0), info, Load(0));
  EXPECT_EQ(pool.FindRoute({})->decode_rank, 0u);
  pool.OnRequestEnded(Id(0), 2, std::nullopt);
  EXPECT_EQ(pool.num_in_flight(), 4);
}

TEST(WorkerPoolTest, AvoidsWorkersOnlyWhereThereAreOthers) {
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  pool.OnProbe(Id(1), Info(WORKER_ROLE_UNIFIED), Load(50));
  EXPECT_EQ(pool.FindRoute({.avoid = {Id(0)}})->decode, Id(1));
  EXPECT_EQ(pool.FindRoute({.avoid = {Id(0), Id(1)}})->decode, Id(0));
}

TEST(WorkerPoolTest, TakesOnlyWorkersOfTheFingerprintAndWithTheContext) {
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  v1::GetWorkerInfoResponse wide = Info(WORKER_ROLE_UNIFIED);
  wide.set_max_context_tokens(2000);
  pool.OnProbe(Id(1), wide, Load(50));
  EXPECT_EQ(pool.FindRoute({.context_tokens = 1000})->decode, Id(0));
  EXPECT_EQ(pool.FindRoute({.context_tokens = 1001})->decode, Id(1));
  EXPECT_TRUE(
      absl::IsUnavailable(pool.FindRoute({.context_tokens = 2001}).status()));
  EXPECT_TRUE(pool.FindRoute({.fingerprint = "f"}).ok());
  EXPECT_TRUE(
      absl::IsUnavailable(pool.FindRoute({.fingerprint = "g"}).status()));
  EXPECT_EQ(pool.num_in_flight(), 3) << "a refusal counts nobody";
}

TEST(WorkerPoolTest, TakesASuspectOnlyAsTheLastChoice) {
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  pool.OnProbe(Id(1), Info(WORKER_ROLE_UNIFIED), Load(50));
  pool.OnSuspect(Id(0));
  EXPECT_EQ(pool.state(Id(0)), kSuspect);
  EXPECT_EQ(pool.FindRoute({})->decode, Id(1));
  EXPECT_EQ(pool.FindRoute({.avoid = {Id(1)}})->decode, Id(1))
      << "ready, if avoided";
  pool.OnProbeFailed(Id(1), absl::UnavailableError(""));
  EXPECT_EQ(pool.FindRoute({})->decode, Id(0));
  pool.OnSuspect(Id(1));
  EXPECT_EQ(pool.state(Id(1)), kUnhealthy) << "known to be worse";
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  EXPECT_EQ(pool.state(Id(0)), kReady);
}

TEST(WorkerPoolTest, TakesNoWorseWorkersThanItMay) {
  WorkerPool pool = MakePool({WORKER_ROLE_PREFILL, WORKER_ROLE_DECODE});
  pool.OnProbe(Id(0), Info(WORKER_ROLE_PREFILL), Load(0));
  pool.OnProbe(Id(1), Info(WORKER_ROLE_DECODE), Load(0));
  EXPECT_TRUE(pool.FindRoute({.worst = RouteRank::kUntried}).ok());
  const absl::Status tried =
      pool.FindRoute({.avoid = {Id(1)}, .worst = RouteRank::kUntried}).status();
  EXPECT_TRUE(absl::IsUnavailable(tried));
  EXPECT_TRUE(RetryDelay(tried).has_value());
  EXPECT_TRUE(
      pool.FindRoute({.avoid = {Id(1)}, .worst = RouteRank::kReady}).ok());
  pool.OnSuspect(Id(0));
  EXPECT_FALSE(pool.FindRoute({.worst = RouteRank::kReady}).ok());
  EXPECT_TRUE(pool.FindRoute({.worst = RouteRank::kSuspect}).ok());
  EXPECT_EQ(pool.num_in_flight(), 6) << "a refusal counts nobody";
}

TEST(WorkerPoolTest, PrefersAGoodUnifiedWorkerToASuspectPair) {
  WorkerPool pool =
      MakePool({WORKER_ROLE_PREFILL, WORKER_ROLE_DECODE, WORKER_ROLE_UNIFIED});
  pool.OnProbe(Id(0), Info(WORKER_ROLE_PREFILL), Load(0));
  pool.OnProbe(Id(1), Info(WORKER_ROLE_DECODE), Load(0));
  pool.OnProbe(Id(2), Info(WORKER_ROLE_UNIFIED), Load(0));
  EXPECT_EQ(pool.FindRoute({})->prefill, Id(0)) << "equals: the pair";
  pool.OnSuspect(Id(1));
  EXPECT_EQ(pool.FindRoute({})->decode, Id(2));
}

TEST(WorkerPoolTest, CountsWorkersByState) {
  WorkerPool pool =
      MakePool({WORKER_ROLE_PREFILL, WORKER_ROLE_DECODE, WORKER_ROLE_UNIFIED});
  pool.OnProbe(Id(0), Info(WORKER_ROLE_PREFILL), Load(0));
  pool.OnProbeFailed(Id(1), absl::UnavailableError(""));
  std::array<int, kNumWorkerStates> expected = {};
  expected[static_cast<int>(kReady)] = 1;
  expected[static_cast<int>(kUnhealthy)] = 1;
  expected[static_cast<int>(kUnknown)] = 1;
  EXPECT_EQ(pool.CountStates(), expected);
  expected = {};
  expected[static_cast<int>(kUnhealthy)] = 1;
  EXPECT_EQ(pool.CountStates(WORKER_ROLE_DECODE), expected);
}

// --- Who joins and leaves at run time.

TEST(WorkerPoolTest, OneThatJoinsTakesRequestsOnceProbed) {
  WorkerPool pool = MakePool({});
  EXPECT_FALSE(pool.Served().ok());
  const WorkerId id = pool.Join({"host:7", WORKER_ROLE_UNIFIED});
  EXPECT_EQ(pool.state(id), kUnknown);
  EXPECT_FALSE(pool.FindRoute({}).ok());
  pool.OnProbe(id, Info(WORKER_ROLE_UNIFIED), Load(0));
  EXPECT_EQ(pool.FindRoute({})->decode, id);
}

TEST(WorkerPoolTest, OneThatLeftTakesNothingAndGoesWithItsLastRequest) {
  std::vector<WorkerId> gone;
  WorkerPool::Options options;
  options.text_hash = "text";
  options.vocab_size = 100;
  options.make_policy = [](v1::WorkerRole) {
    return MakeRoutingPolicy("least_loaded");
  };
  options.workers = {{"a:1", WORKER_ROLE_UNIFIED},
                     {"b:1", WORKER_ROLE_UNIFIED}};
  options.on_gone = [&gone](WorkerId id) { gone.push_back(id); };
  WorkerPool pool(options);
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  pool.OnProbe(Id(1), Info(WORKER_ROLE_UNIFIED), Load(50));
  EXPECT_EQ(pool.FindRoute({})->decode, Id(0));
  EXPECT_EQ(pool.FindRoute({})->decode, Id(0));
  pool.Leave(Id(0));
  EXPECT_EQ(pool.state(Id(0)), kLeft);
  EXPECT_EQ(pool.CountStates()[static_cast<int>(kLeft)], 1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(pool.FindRoute({})->decode, Id(1));
  // What its prober and its requests still say.
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  pool.OnProbeFailed(Id(0), absl::UnavailableError(""));
  pool.OnSuspect(Id(0));
  EXPECT_EQ(pool.state(Id(0)), kLeft);
  EXPECT_EQ(pool.num_in_flight(), 7);
  pool.OnRequestEnded(Id(0), 0, Load(1));
  EXPECT_TRUE(gone.empty());
  pool.OnRequestEnded(Id(0), 0, std::nullopt);
  EXPECT_EQ(gone, (std::vector{Id(0)}));
  EXPECT_EQ(pool.CountStates()[static_cast<int>(kLeft)], 0);
  EXPECT_EQ(pool.num_in_flight(), 5);
  pool.OnSuspect(Id(0));
  EXPECT_EQ(pool.state(Id(0)), kLeft);
}

TEST(WorkerPoolTest, NeverUsesAnIdAgain) {
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED});
  std::set<WorkerId> ids = {Id(0)};
  for (int i = 0; i < 5; ++i) {
    pool.Leave(pool.members().back().id);
    EXPECT_TRUE(pool.members().empty());
    EXPECT_TRUE(ids.insert(pool.Join({"host:0", WORKER_ROLE_UNIFIED})).second);
  }
}

TEST(WorkerPoolTest, IsReadyNoMoreWhenTheLastOneLeaves) {
  std::vector<bool> told;
  WorkerPool pool = MakePool({WORKER_ROLE_PREFILL, WORKER_ROLE_DECODE},
                             [&told](bool ready) { told.push_back(ready); });
  pool.OnProbe(Id(0), Info(WORKER_ROLE_PREFILL), Load(0));
  pool.OnProbe(Id(1), Info(WORKER_ROLE_DECODE), Load(0));
  pool.Leave(Id(0));
  EXPECT_FALSE(pool.FindRoute({}).ok());
  EXPECT_EQ(told, (std::vector<bool>{true, false}));
}

TEST(WorkerPoolTest, ANewFingerprintIsTakenOnceTheOldOnesHaveLeft) {
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED});
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  const Route route = *pool.FindRoute({});
  v1::GetWorkerInfoResponse next = Info(WORKER_ROLE_UNIFIED);
  next.set_fingerprint("g");
  const WorkerId id = pool.Join({"host:1", WORKER_ROLE_UNIFIED});
  pool.Leave(Id(0));
  pool.OnProbe(id, next, Load(0));
  EXPECT_EQ(pool.state(id), kReady) << "a stream that goes on is no matter";
  pool.OnRequestEnded(route.decode, route.decode_rank, std::nullopt);
  EXPECT_EQ(pool.Served()->fingerprint, "g");
}

TEST(WorkerPoolTest, TakesReportsFromManyThreads) {
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED, WORKER_ROLE_UNIFIED});
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  pool.OnProbe(Id(1), Info(WORKER_ROLE_UNIFIED), Load(0));
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 500; ++i) {
        const absl::StatusOr<Route> route = pool.FindRoute({});
        if (i % 7 == t) pool.OnSuspect(route->decode);
        pool.OnProbe(Id(i % 2), Info(WORKER_ROLE_UNIFIED), Load(i));
        pool.OnRequestEnded(route->decode, route->decode_rank, Load(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.num_in_flight(), 0);
}

TEST(WorkerPoolTest, JoinsAndLeavesWithRequestsOfManyThreadsInFlight) {
  WorkerPool pool = MakePool({WORKER_ROLE_UNIFIED});
  pool.OnProbe(Id(0), Info(WORKER_ROLE_UNIFIED), Load(0));
  std::vector<std::thread> clients;
  for (int t = 0; t < 3; ++t) {
    clients.emplace_back([&pool] {
      for (int i = 0; i < 500; ++i) {
        const Route first = *pool.FindRoute({});
        const Route second = *pool.FindRoute({});
        pool.OnSuspect(first.decode);
        pool.OnRequestEnded(first.decode, first.decode_rank, Load(i));
        pool.OnRequestEnded(second.decode, second.decode_rank, std::nullopt);
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    // The old one leaves once the new one can serve.
    const WorkerId old = pool.members().front().id;
    const WorkerId id = pool.Join({"host:1", WORKER_ROLE_UNIFIED});
    pool.OnProbe(id, Info(WORKER_ROLE_UNIFIED), Load(0));
    pool.Leave(old);
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(pool.num_in_flight(), 0);
  EXPECT_EQ(pool.CountStates()[static_cast<int>(kLeft)], 0);
}

}  // namespace
}  // namespace baton
