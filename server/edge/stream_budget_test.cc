#include "server/edge/stream_budget.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr int64_t kTicks = StreamBudget::kTicksToCut;

// Streams, and whom the budget cuts, in order.
class StreamBudgetTest : public ::testing::Test {
 protected:
  StreamBudget::Account& Add() {
    const size_t index = accounts_.size();
    accounts_.push_back(std::make_unique<StreamBudget::Account>(
        &budget_, [this, index](const absl::Status& status) {
          cut_.push_back(index);
          status_ = status;
        }));
    return *accounts_.back();
  }
  // Bytes wait behind a message that is being written.
  StreamBudget::Account& AddWriting(size_t bytes) {
    StreamBudget::Account& account = Add();
    account.SetBytes(bytes);
    account.SetWriting(true);
    return account;
  }
  void Tick(int64_t times) {
    for (int64_t i = 0; i < times; ++i) budget_.Tick();
  }

  StreamBudget budget_{
      {.max_bytes = 100, .slow_reader_timeout = absl::Seconds(8)}};
  std::vector<std::unique_ptr<StreamBudget::Account>> accounts_;
  std::vector<size_t> cut_;
  absl::Status status_;
};

TEST_F(StreamBudgetTest, AReaderThatTakesNoMessageIsCutAtTheTimeLimitOnce) {
  EXPECT_EQ(budget_.tick_period(), absl::Milliseconds(500));
  AddWriting(1);
  Tick(kTicks);
  EXPECT_TRUE(cut_.empty());
  Tick(1);
  EXPECT_EQ(cut_, std::vector<size_t>{0});
  EXPECT_EQ(status_, absl::AbortedError(
                         "SLOW_READER: the client took no message for 8s"));
  Tick(2 * kTicks);
  EXPECT_EQ(cut_.size(), 1u);
  EXPECT_TRUE(accounts_[0]->is_cut());
  EXPECT_EQ(budget_.counts().cut_by_timeout, 1u);
}

TEST_F(StreamBudgetTest, NobodyIsCutWhoTakesAMessageNowAndThenOrHasNone) {
  StreamBudget::Account& slow = AddWriting(99);
  Add();  // Its generation takes its time.
  for (int i = 0; i < 10; ++i) {
    Tick(kTicks);
    slow.SetWriting(true);
  }
  EXPECT_TRUE(cut_.empty());
}

TEST_F(StreamBudgetTest, OfThoseThatAreAlikeTheOneThatBeganFirstIsCutFirst) {
  for (int i = 0; i < 20; ++i) AddWriting(10);
  accounts_[0]->Settle();
  EXPECT_EQ(cut_, std::vector<size_t>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  Tick(kTicks + 1);
  for (size_t i = 0; i < cut_.size(); ++i) EXPECT_EQ(cut_[i], i);
  EXPECT_EQ(cut_.size(), 20u);
}

TEST_F(StreamBudgetTest, BeyondItsBytesTheLongestStuckIsCutFirst) {
  AddWriting(30);
  Tick(1);
  AddWriting(20);
  AddWriting(40);
  Tick(1);
  StreamBudget::Account& healthy = AddWriting(10);
  healthy.Settle();
  EXPECT_TRUE(cut_.empty());
  healthy.SetBytes(11);
  healthy.Settle();
  EXPECT_EQ(cut_, std::vector<size_t>{0});
  EXPECT_EQ(status_.code(), absl::StatusCode::kAborted);
  // While the bytes of that one are on their way out nobody else is cut.
  healthy.SetBytes(40);
  healthy.Settle();
  EXPECT_EQ(cut_.size(), 1u);
  // Of two that are stuck for as long the one with more.
  healthy.SetBytes(41);
  healthy.Settle();
  EXPECT_EQ(cut_, (std::vector<size_t>{0, 2}));
  EXPECT_EQ(budget_.counts().cut_by_memory, 2u);
  EXPECT_EQ(budget_.counts().cut_by_timeout, 0u);
}

TEST_F(StreamBudgetTest, OneThatIsNotBeingWrittenIsNeverCut) {
  StreamBudget::Account& account = Add();
  account.SetBytes(1000);
  account.Settle();
  Tick(2 * kTicks);
  EXPECT_TRUE(cut_.empty());
}

TEST_F(StreamBudgetTest, CountsWhatIsThereAndForgetsWhoHasGone) {
  AddWriting(30).SetPaused(true);
  AddWriting(20);
  accounts_[0]->SetPaused(true);
  EXPECT_EQ(budget_.counts().bytes, 50u);
  EXPECT_EQ(budget_.counts().paused, 1u);
  accounts_[0]->SetPaused(false);
  accounts_[0]->SetPaused(true);
  EXPECT_EQ(budget_.counts().pauses, 2u);
  accounts_[0].reset();
  EXPECT_EQ(budget_.counts().bytes, 20u);
  EXPECT_EQ(budget_.counts().paused, 0u);
  Tick(2 * kTicks);
  EXPECT_EQ(cut_, std::vector<size_t>{1});
}

// Streams of several threads, each beyond its share now and then.
TEST(StreamBudgetThreadsTest, TheBytesAddUpWhoeverComesAndGoes) {
  constexpr int kThreads = 4, kStreams = 300;
  StreamBudget budget({.max_bytes = 1000});
  std::atomic<int> cuts{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kStreams; ++i) {
        StreamBudget::Account account(&budget,
                                      [&](const absl::Status&) { ++cuts; });
        account.SetWriting(true);
        account.SetPaused(i % 2 == 0);
        for (size_t bytes = 0; bytes < 600; bytes += 100) {
          account.SetBytes(bytes);
          account.Settle();
        }
        if (i % 3 == 0) account.SetBytes(0);
      }
    });
  }
  for (int i = 0; i < 1000; ++i) budget.Tick();
  for (std::thread& thread : threads) thread.join();
  const StreamCounts counts = budget.counts();
  EXPECT_EQ(counts.bytes, 0u);
  EXPECT_EQ(counts.paused, 0u);
  EXPECT_EQ(counts.pauses, uint64_t{kThreads} * kStreams / 2);
  EXPECT_EQ(counts.cut_by_memory + counts.cut_by_timeout,
            static_cast<uint64_t>(cuts.load()));
}

}  // namespace
}  // namespace baton
