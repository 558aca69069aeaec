#include "server/router/worker_change.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

using v1::WORKER_ROLE_DECODE;
using v1::WORKER_ROLE_PREFILL;

std::vector<WorkerPool::Member> Members(std::vector<WorkerAddress> where) {
  std::vector<WorkerPool::Member> members;
  for (const WorkerAddress& one : where) {
    members.push_back({WorkerId(static_cast<uint32_t>(members.size())), one});
  }
  return members;
}

std::vector<std::string> Addresses(const std::vector<WorkerAddress>& workers) {
  std::vector<std::string> addresses;
  for (const WorkerAddress& worker : workers) {
    addresses.push_back(worker.address);
  }
  return addresses;
}

TEST(WorkerChangeTest, WhoIsNewJoinsInOrderAndWhoIsMissingLeaves) {
  const auto was = Members({{"a:1", WORKER_ROLE_DECODE},
                            {"b:1", WORKER_ROLE_DECODE},
                            {"c:1", WORKER_ROLE_DECODE}});
  const std::vector<WorkerAddress> is = {{"z:1", WORKER_ROLE_DECODE},
                                         {"b:1", WORKER_ROLE_DECODE},
                                         {"d:1", WORKER_ROLE_DECODE}};
  const WorkerChange change = FindWorkerChange(was, is);
  EXPECT_EQ(change.left, (std::vector{WorkerId(0), WorkerId(2)}));
  EXPECT_EQ(Addresses(change.joined), (std::vector<std::string>{"z:1", "d:1"}));
  EXPECT_EQ(change.num_left_out, 0u);
}

TEST(WorkerChangeTest, TheSameListInAnotherOrderChangesNothing) {
  const auto was =
      Members({{"a:1", WORKER_ROLE_DECODE}, {"b:1", WORKER_ROLE_PREFILL}});
  const std::vector<WorkerAddress> is = {{"b:1", WORKER_ROLE_PREFILL},
                                         {"a:1", WORKER_ROLE_DECODE},
                                         {"b:1", WORKER_ROLE_PREFILL}};
  const WorkerChange change = FindWorkerChange(was, is);
  EXPECT_TRUE(change.left.empty());
  EXPECT_TRUE(change.joined.empty());
}

TEST(WorkerChangeTest, OneListedTwiceJoinsOnce) {
  const std::vector<WorkerAddress> is = {{"a:1", WORKER_ROLE_DECODE},
                                         {"a:1", WORKER_ROLE_DECODE}};
  EXPECT_EQ(FindWorkerChange({}, is).joined.size(), 1u);
}

TEST(WorkerChangeTest, AnotherRoleIsAnotherWorker) {
  const auto was = Members({{"a:1", WORKER_ROLE_DECODE}});
  const std::vector<WorkerAddress> is = {{"a:1", WORKER_ROLE_PREFILL}};
  const WorkerChange change = FindWorkerChange(was, is);
  EXPECT_EQ(change.left, (std::vector{WorkerId(0)}));
  ASSERT_EQ(change.joined.size(), 1u);
  EXPECT_EQ(change.joined[0].role, WORKER_ROLE_PREFILL);
}

TEST(WorkerChangeTest, NothingIsLeftOfAnEmptyList) {
  const auto was = Members({{"a:1", WORKER_ROLE_DECODE}});
  EXPECT_EQ(FindWorkerChange(was, {}).left.size(), 1u);
}

TEST(WorkerChangeTest, ThoseBeyondTheBoundAreLeftOutUntilOthersGo) {
  std::vector<WorkerAddress> is;
  for (size_t i = 0; i < kMaxWorkers + 3; ++i) {
    is.push_back({"host:" + std::to_string(i), WORKER_ROLE_DECODE});
  }
  const WorkerChange first = FindWorkerChange({}, is);
  EXPECT_EQ(first.joined.size(), kMaxWorkers);
  EXPECT_EQ(first.joined[0].address, "host:0");
  EXPECT_EQ(first.num_left_out, 3u);
  const auto was = Members(first.joined);
  EXPECT_EQ(FindWorkerChange(was, is).num_left_out, 3u);
  is.erase(is.begin());
  const WorkerChange next = FindWorkerChange(was, is);
  EXPECT_EQ(next.left.size(), 1u);
  EXPECT_EQ(next.joined.size(), 1u);
  EXPECT_EQ(next.num_left_out, 2u);
}

}  // namespace
}  // namespace baton
