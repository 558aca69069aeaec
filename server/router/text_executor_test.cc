#include "server/router/text_executor.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

constexpr size_t kLong = TextExecutor::kMaxInlineBytes + 1;

TEST(TextExecutorTest, DoesShortTextsWhereTheyComeIn) {
  TextExecutor executor;
  std::thread::id thread;
  ASSERT_TRUE(executor
                  .Run(TextExecutor::kMaxInlineBytes,
                       [&] { thread = std::this_thread::get_id(); })
                  .ok());
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST(TextExecutorTest, DoesLongTextsElsewhereAndInOrder) {
  std::vector<int> order;
  std::thread::id thread;
  {
    TextExecutor executor;
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(executor
                      .Run(kLong,
                           [&, i] {
                             order.push_back(i);
                             thread = std::this_thread::get_id();
                           })
                      .ok());
    }
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(TextExecutorTest, RefusesOneMoreThanMayWait) {
  absl::Notification began;
  absl::Notification go_on;
  size_t num_done = 0;
  {
    TextExecutor executor;
    ASSERT_TRUE(executor
                    .Run(kLong,
                         [&] {
                           began.Notify();
                           go_on.WaitForNotification();
                         })
                    .ok());
    began.WaitForNotification();
    for (size_t i = 0; i < TextExecutor::kMaxQueuedJobs; ++i) {
      ASSERT_TRUE(executor.Run(kLong, [&] { ++num_done; }).ok());
    }
    const absl::Status refused = executor.Run(kLong, [&] { ++num_done; });
    EXPECT_TRUE(absl::IsResourceExhausted(refused));
    EXPECT_TRUE(RetryDelay(refused).has_value());
    bool inline_done = false;
    EXPECT_TRUE(executor.Run(1, [&] { inline_done = true; }).ok());
    EXPECT_TRUE(inline_done) << "short ones never wait";
    go_on.Notify();
  }
  EXPECT_EQ(num_done, TextExecutor::kMaxQueuedJobs);
}

}  // namespace
}  // namespace baton
