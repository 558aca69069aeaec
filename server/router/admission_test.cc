#include "server/router/admission.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

AdmissionTicket Ticket(uint64_t number) { return AdmissionTicket(number); }

class AdmissionTest : public ::testing::Test {
 protected:
  absl::Status Enter(Admission* admission, uint64_t number,
                     const std::string& client_request_id = "") {
    return admission->Enter(Ticket(number), client_request_id,
                            [this, number] { started_.push_back(number); });
  }
  std::vector<uint64_t> started_;
};

TEST_F(AdmissionTest, APausedRequestGivesItsPlaceAndNeedsNoneToGoOn) {
  Admission admission({.max_concurrent_requests = 2, .max_queued_requests = 3});
  for (uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(Enter(&admission, i).ok());
  admission.SetPaused(Ticket(1), true);
  admission.SetPaused(Ticket(1), true);  // Nothing new.
  EXPECT_EQ(started_, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(admission.num_running(), 2u);
  admission.SetPaused(Ticket(1), false);
  admission.SetPaused(Ticket(1), false);
  EXPECT_EQ(admission.num_running(), 3u);
  // One too many: its place is nobody's.
  admission.Leave(Ticket(2));
  EXPECT_EQ(admission.num_running(), 2u);
  EXPECT_EQ(admission.num_waiting(), 1u);
  admission.SetPaused(Ticket(3), true);
  EXPECT_EQ(started_, (std::vector<uint64_t>{1, 2, 3, 4}));
  admission.Leave(Ticket(3));  // Paused: it has none to give.
  EXPECT_EQ(admission.num_running(), 2u);
  admission.Leave(Ticket(1));
  admission.Leave(Ticket(4));
  EXPECT_EQ(admission.num_running(), 0u);
}

TEST_F(AdmissionTest, StartsUpToTheBoundAndTheRestInOrder) {
  Admission admission({.max_concurrent_requests = 2, .max_queued_requests = 3});
  for (uint64_t i = 1; i <= 5; ++i) EXPECT_TRUE(Enter(&admission, i).ok());
  EXPECT_EQ(started_, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(admission.num_running(), 2u);
  EXPECT_EQ(admission.num_waiting(), 3u);
  admission.Leave(Ticket(2));
  admission.Leave(Ticket(4));  // Gives up waiting.
  admission.Leave(Ticket(1));
  EXPECT_EQ(started_, (std::vector<uint64_t>{1, 2, 3, 5}));
  admission.Leave(Ticket(3));
  admission.Leave(Ticket(5));
  EXPECT_EQ(admission.num_running(), 0u);
  EXPECT_EQ(admission.num_waiting(), 0u);
}

TEST_F(AdmissionTest, RefusesOneMoreThanTheBound) {
  Admission admission({.max_concurrent_requests = 1, .max_queued_requests = 1});
  EXPECT_TRUE(Enter(&admission, 1).ok());
  EXPECT_TRUE(Enter(&admission, 2).ok());
  const absl::Status refused = Enter(&admission, 3);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_TRUE(RetryDelay(refused).has_value());
  admission.Leave(Ticket(1));
  EXPECT_TRUE(Enter(&admission, 4).ok());
}

TEST_F(AdmissionTest, RefusesEverythingThatWouldWaitWithoutAQueue) {
  Admission admission({.max_concurrent_requests = 1, .max_queued_requests = 0});
  EXPECT_TRUE(Enter(&admission, 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Enter(&admission, 2)));
}

TEST_F(AdmissionTest, ShedsTheYoungerHalfOfThoseThatWaitEachOnce) {
  Admission admission({.max_concurrent_requests = 1, .max_queued_requests = 9});
  std::vector<uint64_t> shed;
  for (uint64_t i = 1; i <= 6; ++i) {
    EXPECT_TRUE(admission
                    .Enter(
                        Ticket(i), "", [this, i] { started_.push_back(i); },
                        [&shed, &admission, i](const absl::Status& status) {
                          EXPECT_TRUE(absl::IsResourceExhausted(status));
                          shed.push_back(i);
                          if (i != 5) admission.Leave(Ticket(i));
                        })
                    .ok());
  }
  const absl::Status status = absl::ResourceExhaustedError("memory");
  EXPECT_EQ(admission.ShedWaiting(status), 3u);
  EXPECT_EQ(shed, (std::vector<uint64_t>{6, 5, 4}));
  EXPECT_EQ(admission.ShedWaiting(status), 2u) << "5 is about to leave";
  EXPECT_EQ(shed, (std::vector<uint64_t>{6, 5, 4, 3, 2}));
  EXPECT_EQ(admission.ShedWaiting(status), 0u);
  admission.Leave(Ticket(5));
  admission.Leave(Ticket(1));
  EXPECT_EQ(started_, std::vector<uint64_t>{1}) << "that runs is never shed";
  EXPECT_EQ(admission.num_running(), 0u);
}

TEST_F(AdmissionTest, KeepsAClientsIdWhileItsRequestLives) {
  Admission admission({.max_concurrent_requests = 1, .max_queued_requests = 9});
  EXPECT_TRUE(Enter(&admission, 1, "a").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Enter(&admission, 2, "a")));
  EXPECT_TRUE(Enter(&admission, 3, "b").ok()) << "waits";
  EXPECT_TRUE(absl::IsAlreadyExists(Enter(&admission, 4, "b")));
  EXPECT_TRUE(Enter(&admission, 5).ok());
  EXPECT_TRUE(Enter(&admission, 6).ok()) << "no id is no id";
  admission.Leave(Ticket(3));
  EXPECT_TRUE(Enter(&admission, 7, "b").ok());
  admission.Leave(Ticket(1));
  EXPECT_TRUE(Enter(&admission, 8, "a").ok());
}

TEST_F(AdmissionTest, DoesNotNestRequestsThatEndAtOnce) {
  constexpr uint64_t kRequests = 100'000;
  Admission admission(
      {.max_concurrent_requests = 1, .max_queued_requests = kRequests});
  uint64_t num_started = 0;
  ASSERT_TRUE(Enter(&admission, 0).ok());
  for (uint64_t i = 1; i <= kRequests; ++i) {
    ASSERT_TRUE(admission
                    .Enter(Ticket(i), "",
                           [&admission, &num_started, i] {
                             ++num_started;
                             admission.Leave(Ticket(i));
                           })
                    .ok());
  }
  admission.Leave(Ticket(0));
  EXPECT_EQ(num_started, kRequests);
  EXPECT_EQ(admission.num_running(), 0u);
}

TEST_F(AdmissionTest, KeepsTheBoundWithManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  Admission admission(
      {.max_concurrent_requests = 3, .max_queued_requests = 1000});
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  std::atomic<int> num_started = 0;
  std::atomic<uint64_t> counter = 0;
  const auto count_start = [&] {
    const int now = ++running;
    int seen = most.load();
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    ++num_started;
  };
  const auto enter_and_leave = [&] {
    std::atomic<bool> started = false;
    const AdmissionTicket ticket(++counter);
    const absl::Status status = admission.Enter(ticket, "", [&] {
      count_start();
      started.store(true);
      started.notify_one();
    });
    ASSERT_TRUE(status.ok());
    started.wait(false);
    --running;
    admission.Leave(ticket);
  };
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) enter_and_leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_started, kThreads * kRounds);
  EXPECT_LE(most, 3);
  EXPECT_EQ(admission.num_running(), 0u);
  EXPECT_EQ(admission.num_waiting(), 0u);
}

}  // namespace
}  // namespace baton
