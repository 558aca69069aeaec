#include "server/router/call_report.h"

#include <chrono>
#include <memory>
#include <utility>

#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"
#include "server/router/routing_policy.h"

namespace baton {
namespace {

// Met by the first worker alone, if it is neither full nor ejected.
const RouteNeeds kFirstUntried = {.exclude = {WorkerId(1)},
                                  .worst = RouteRank::kUntried};

// Of two workers the first is ejected by its second failure.
class CallReportTest : public ::testing::Test {
 protected:
  CallReportTest() {
    WorkerPool::Options options;
    options.make_policy = [](v1::WorkerRole) {
      return MakeRoutingPolicy("least_loaded");
    };
    options.ejection.failures_in_a_row = 2;
    options.workers = {{"host:1", v1::WORKER_ROLE_UNIFIED},
                       {"host:2", v1::WORKER_ROLE_UNIFIED}};
    pool_ = std::make_unique<WorkerPool>(std::move(options));
    v1::GetWorkerInfoResponse info;
    info.set_role(v1::WORKER_ROLE_UNIFIED);
    for (uint32_t i = 0; i < 2; ++i) pool_->OnProbe(WorkerId(i), info, {});
    Report(WorkerId(1)).OnEnded(absl::OkStatus());  // Others are fine.
  }
  CallReport::Options Options(WorkerId worker) {
    return {.pool = pool_.get(),
            .worker = worker,
            .call = ++call_,
            .deadline = deadline_};
  }
  CallReport Report(WorkerId worker) { return CallReport(Options(worker)); }
  bool IsEjected() { return pool_->num_ejected() == 1; }

  std::chrono::system_clock::time_point deadline_ =
      std::chrono::system_clock::now() + std::chrono::hours(1);
  uint64_t call_ = 0;
  std::unique_ptr<WorkerPool> pool_;
};

TEST_F(CallReportTest, TellsOfFailures) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(IsEjected());
    Report(WorkerId(0)).OnEnded(absl::InternalError(""));
  }
  EXPECT_TRUE(IsEjected());
}

TEST_F(CallReportTest, TellsNothingOfCallsThatNeverBegan) {
  deadline_ = std::chrono::system_clock::now();
  for (int i = 0; i < 9; ++i) Report(WorkerId(0)).OnNeverBegan();
  EXPECT_FALSE(IsEjected());
}

TEST_F(CallReportTest, ACancelledCallIsLateAtTheDeadlineAlone) {
  for (int i = 0; i < 9; ++i) {
    Report(WorkerId(0)).OnEnded(absl::CancelledError(""));
  }
  EXPECT_FALSE(IsEjected());
  deadline_ = std::chrono::system_clock::now();
  for (int i = 0; i < 2; ++i) {
    Report(WorkerId(0)).OnEnded(absl::CancelledError(""));
  }
  EXPECT_TRUE(IsEjected());
}

TEST_F(CallReportTest, AnAnsweredCallIsNotLate) {
  deadline_ = std::chrono::system_clock::now();
  for (int i = 0; i < 9; ++i) {
    CallReport report(Options(WorkerId(0)));
    report.OnAnswered();
    report.OnEnded(absl::DeadlineExceededError(""));
  }
  EXPECT_FALSE(IsEjected());
}

TEST_F(CallReportTest, AFullWorkerHasNotFailedAndIsLeftAloneForAWhile) {
  const absl::Status full = absl::ResourceExhaustedError("full");
  Report(WorkerId(0)).OnEnded(full);  // Or the request is too large.
  EXPECT_TRUE(pool_->FindRoute(kFirstUntried).ok());
  for (int i = 0; i < 9; ++i) {
    Report(WorkerId(0)).OnEnded(WithRetryDelay(full, absl::Hours(1)));
  }
  EXPECT_FALSE(IsEjected());
  EXPECT_FALSE(pool_->FindRoute(kFirstUntried).ok());
}

// A prefill server whose KV never arrives answers all the same.
TEST_F(CallReportTest, BothEndsOfALostTransferFail) {
  const auto lose_kv = [this](const absl::Status& status) {
    CallReport prefill(Options(WorkerId(0)));
    CallReport::Options decode = Options(WorkerId(1));
    decode.prefill = &prefill;
    prefill.OnAnswered();
    CallReport(decode).OnEnded(status);
    prefill.OnEnded(absl::CancelledError(""));      // By the router, then.
    Report(WorkerId(1)).OnEnded(absl::OkStatus());  // With another prefill.
  };
  for (int i = 0; i < 9; ++i) {
    lose_kv(absl::UnavailableError("the decode server is gone"));
    lose_kv(absl::AbortedError("SLOW_READER: 9s"));
  }
  EXPECT_FALSE(IsEjected());
  for (int i = 0; i < 2; ++i) lose_kv(absl::AbortedError("damaged"));
  EXPECT_TRUE(IsEjected());
}

TEST_F(CallReportTest, NobodyIsLateWhoWaitedForAnother) {
  CallReport prefill(Options(WorkerId(1)));
  CallReport::Options options = Options(WorkerId(0));
  options.prefill = &prefill;
  for (int i = 0; i < 9; ++i) {
    CallReport(options).OnEnded(absl::DeadlineExceededError(""));
  }
  EXPECT_FALSE(IsEjected());
  prefill.OnAnswered();
  for (int i = 0; i < 2; ++i) {
    CallReport(options).OnEnded(absl::DeadlineExceededError(""));
  }
  EXPECT_TRUE(IsEjected());
}

}  // namespace
}  // namespace baton
