#include "server/edge/stream_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace baton {
namespace {

// Merges texts of the same kind. Each message takes kMessageBytes besides its
// text, which a merge saves.
constexpr size_t kMessageBytes = 10;
struct Text {
  char kind = 0;
  std::string text;
};
struct TextTraits {
  static bool Merge(Text* last, Text& next) {
    if (last->kind != next.kind) return false;
    last->text += next.text;
    return true;
  }
  static size_t Bytes(const Text& message) {
    return kMessageBytes + message.text.size();
  }
};
using Queue = StreamQueue<Text, TextTraits>;
using Action = Queue::Action;
using Flow = Queue::Flow;

// Its bounds are those of StreamLimits, but for the producer's pauses.
class StreamQueueTest : public ::testing::Test {
 protected:
  std::vector<Flow> TellFlow() {
    std::vector<Flow> told;
    while (const auto flow = queue_.TakeFlow()) {
      told.push_back(*flow);
      queue_.FlowTold();
    }
    return told;
  }

  StreamBudget budget_{{.pause_bytes = 50, .resume_bytes = 20}};
  StreamBudget::Account account_{&budget_, [](const absl::Status&) {}};
  Queue queue_{&account_};
};

TEST_F(StreamQueueTest, WritesOneAtATimeAndCoalescesWhatWaits) {
  ASSERT_EQ(queue_.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue_.Push({'a', "2"}), Action::kNothing);
  EXPECT_EQ(queue_.Push({'a', "3"}), Action::kNothing);
  EXPECT_EQ(queue_.Push({'b', "4"}), Action::kNothing);
  EXPECT_EQ(queue_.message()->text, "1");
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
  EXPECT_EQ(queue_.message()->text, "23");
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
  EXPECT_EQ(queue_.message()->text, "4");
  EXPECT_EQ(queue_.OnWriteDone(true), Action::kNothing);
}

TEST_F(StreamQueueTest, CoalescesWhatTakesTurns) {
  ASSERT_EQ(queue_.Push({'x', "0"}), Action::kWrite);
  for (const char* text : {"1", "2", "3"}) {
    for (const char kind : {'a', 'b', 'c'}) {
      EXPECT_EQ(queue_.Push({kind, text}), Action::kNothing);
    }
  }
  for (const char kind : {'a', 'b', 'c'}) {
    ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
    EXPECT_EQ(queue_.message()->kind, kind);
    EXPECT_EQ(queue_.message()->text, "123");
  }
  EXPECT_EQ(queue_.OnWriteDone(true), Action::kNothing);
}

TEST_F(StreamQueueTest, TriesOnlySoManyToCoalesce) {
  ASSERT_EQ(queue_.Push({'x', "0"}), Action::kWrite);
  const auto push = [&](int kinds) {
    for (int i = 0; i < kinds; ++i) {
      ASSERT_EQ(queue_.Push({static_cast<char>(i), "1"}), Action::kNothing);
    }
  };
  const auto drain = [&] {
    size_t writes = 0;
    while (queue_.OnWriteDone(true) == Action::kWrite) ++writes;
    return writes;
  };
  const int distance = static_cast<int>(Queue::kMaxMergeDistance);
  push(distance);
  push(distance);
  EXPECT_EQ(drain(), Queue::kMaxMergeDistance);
  ASSERT_EQ(queue_.Push({'x', "0"}), Action::kWrite);
  push(distance + 1);
  ASSERT_EQ(queue_.Push({0, "1"}), Action::kNothing);  // The first is too far.
  EXPECT_EQ(drain(), Queue::kMaxMergeDistance + 2);
}

TEST_F(StreamQueueTest, FinishesOnceAfterAllIsWritten) {
  ASSERT_EQ(queue_.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue_.Push({'a', "2"}), Action::kNothing);
  EXPECT_EQ(queue_.End(absl::AbortedError("why")), Action::kNothing);
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kFinish);
  EXPECT_EQ(queue_.status(), absl::AbortedError("why"));
  EXPECT_EQ(queue_.OnPeerGone(), Action::kNothing);
}

TEST_F(StreamQueueTest, AnEmptyStreamFinishesAtItsEnd) {
  EXPECT_EQ(queue_.End(absl::OkStatus()), Action::kFinish);
}

TEST_F(StreamQueueTest, APeerThatIsGoneDropsTheQueueAndWaitsForTheEnd) {
  ASSERT_EQ(queue_.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue_.Push({'a', "2"}), Action::kNothing);
  EXPECT_EQ(queue_.OnPeerGone(), Action::kNothing);
  EXPECT_EQ(queue_.OnWriteDone(false), Action::kNothing);
  EXPECT_EQ(queue_.Push({'a', "3"}), Action::kNothing);
  EXPECT_EQ(queue_.End(absl::CancelledError("")), Action::kFinish);
}

TEST_F(StreamQueueTest, AFailedWriteIsAPeerThatIsGone) {
  ASSERT_EQ(queue_.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue_.Push({'b', "2"}), Action::kNothing);
  EXPECT_EQ(queue_.End(absl::OkStatus()), Action::kNothing);
  EXPECT_EQ(queue_.OnWriteDone(false), Action::kFinish);
}

TEST_F(StreamQueueTest, NeverFinishesOverAWriteInFlight) {
  ASSERT_EQ(queue_.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue_.OnPeerGone(), Action::kNothing);
  EXPECT_EQ(queue_.End(absl::CancelledError("")), Action::kNothing);
  EXPECT_EQ(queue_.OnWriteDone(false), Action::kFinish);
}

TEST_F(StreamQueueTest, MergedMessagesGiveTheirBytesBack) {
  ASSERT_EQ(queue_.Push({'a', "1"}), Action::kWrite);
  for (int merge = 0; merge < 10'000; ++merge) {
    ASSERT_EQ(queue_.Push({'a', "12"}), Action::kNothing);
    ASSERT_EQ(queue_.Push({'a', "34"}), Action::kNothing) << merge;
    ASSERT_EQ(budget_.counts().bytes,
              2 * kMessageBytes + (merge == 0 ? 1 : 4) + 4);
    ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
    ASSERT_EQ(queue_.message()->text, "1234");
  }
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kNothing);
  EXPECT_EQ(budget_.counts().bytes, 0u);
}

TEST_F(StreamQueueTest, MergesNoFurtherThanAWriteShouldBe) {
  const std::string big(Queue::kMaxMergedBytes - kMessageBytes - 1, 'x');
  ASSERT_EQ(queue_.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue_.Push({'a', "2"}), Action::kNothing);
  EXPECT_EQ(queue_.Push({'a', big}), Action::kNothing);
  // It would fit behind the 2, but belongs behind what is big.
  EXPECT_EQ(queue_.Push({'a', "3"}), Action::kNothing);
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
  EXPECT_EQ(queue_.message()->text, "2");
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
  EXPECT_EQ(queue_.message()->text, big);
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
  EXPECT_EQ(queue_.message()->text, "3");
}

TEST_F(StreamQueueTest, PausesAProducerWhenItIsHighAndLetsItGoOnWhenItIsLow) {
  ASSERT_EQ(queue_.Push({'a', std::string(100, 'x')}), Action::kWrite);
  EXPECT_TRUE(TellFlow().empty());  // Nothing waits.
  EXPECT_EQ(queue_.Push({'a', std::string(15, 'x')}), Action::kNothing);
  EXPECT_EQ(queue_.Push({'b', std::string(14, 'x')}), Action::kNothing);
  EXPECT_TRUE(TellFlow().empty());
  EXPECT_EQ(queue_.Push({'c', ""}), Action::kNothing);
  EXPECT_EQ(TellFlow(), std::vector{Flow::kPause});
  EXPECT_EQ(budget_.counts().paused, 1u);
  // What was under way still comes.
  EXPECT_EQ(queue_.Push({'c', "late"}), Action::kNothing);
  EXPECT_TRUE(TellFlow().empty());
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
  EXPECT_TRUE(TellFlow().empty());  // Two are left.
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
  EXPECT_EQ(TellFlow(), std::vector{Flow::kGoOn});
  EXPECT_EQ(budget_.counts().paused, 0u);
  EXPECT_EQ(budget_.counts().pauses, 1u);
}

TEST_F(StreamQueueTest, OneThreadAtATimeTellsTheFlowAndTheNewestLast) {
  const std::string much(60, 'x');
  ASSERT_EQ(queue_.Push({'a', ""}), Action::kWrite);
  EXPECT_EQ(queue_.Push({'a', much}), Action::kNothing);
  ASSERT_EQ(queue_.TakeFlow(), Flow::kPause);
  // Another thread, before the pause is told.
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
  EXPECT_EQ(queue_.TakeFlow(), std::nullopt);
  queue_.FlowTold();
  EXPECT_EQ(TellFlow(), std::vector{Flow::kGoOn});
  // What is over again before anybody asks is not told.
  EXPECT_EQ(queue_.Push({'a', much}), Action::kNothing);
  ASSERT_EQ(queue_.OnWriteDone(true), Action::kWrite);
  EXPECT_TRUE(TellFlow().empty());
}

TEST_F(StreamQueueTest, AProducerThatHasEndedIsToldNothing) {
  ASSERT_EQ(queue_.Push({'a', ""}), Action::kWrite);
  EXPECT_EQ(queue_.Push({'a', std::string(60, 'x')}), Action::kNothing);
  EXPECT_EQ(budget_.counts().paused, 1u);
  EXPECT_EQ(queue_.End(absl::OkStatus()), Action::kNothing);
  EXPECT_TRUE(TellFlow().empty());
  EXPECT_EQ(budget_.counts().paused, 0u);
}

TEST_F(StreamQueueTest, OfAPeerThatIsGoneNothingIsKept) {
  ASSERT_EQ(queue_.Push({'a', ""}), Action::kWrite);
  EXPECT_EQ(queue_.Push({'a', std::string(60, 'x')}), Action::kNothing);
  EXPECT_EQ(TellFlow(), std::vector{Flow::kPause});
  EXPECT_EQ(queue_.OnPeerGone(), Action::kNothing);
  EXPECT_EQ(budget_.counts().bytes, kMessageBytes);  // Being written.
  EXPECT_EQ(queue_.OnWriteDone(false), Action::kNothing);
  EXPECT_EQ(budget_.counts().bytes, 0u);
  EXPECT_EQ(budget_.counts().paused, 0u);
}

// A call as gRPC would run it: the transport's thread reports writes, another
// cancels, and whoever is told to finish deletes the queue, as OnDone does.
class Call {
 public:
  Call(bool cancels, uint32_t seed) : seed_(seed) {
    queue_ = std::make_unique<Queue>(&account_);
    transport_ = std::thread([this] { Transport(); });
    if (cancels) canceller_ = std::thread([this] { Cancel(); });
  }
  ~Call() {
    transport_.join();
    if (canceller_.joinable()) canceller_.join();
  }

  void Push(std::string text) { Do(queue_->Push({'a', std::move(text)})); }
  void End() { Do(queue_->End(absl::OkStatus())); }
  // After the destructor's joins, by the owner of `received`.
  std::shared_ptr<std::string> received() { return received_; }

 private:
  // OnCancel may run until OnDone, which gRPC holds back until it returned.
  void Cancel() {
    std::minstd_rand random(seed_);
    for (uint32_t i = random() % 2000; i > 0; --i) std::this_thread::yield();
    if (hold_.exchange(true)) return;  // OnDone came first.
    Do(queue_->OnPeerGone());
    hold_.store(false);
  }

  void Transport() {
    while (true) {
      const int event = event_.exchange(kNone);
      if (event == kWrite) {
        received_->append(queue_->message()->text);
        Do(queue_->OnWriteDone(true));
      } else if (event == kFinish) {
        while (hold_.exchange(true)) std::this_thread::yield();
        queue_.reset();
        return;
      } else {
        std::this_thread::yield();
      }
    }
  }

  void Do(Action action) {
    if (action == Action::kWrite) event_.store(kWrite);
    if (action == Action::kFinish) event_.store(kFinish);
  }

  static constexpr int kNone = 0, kWrite = 1, kFinish = 2;
  const uint32_t seed_;
  StreamBudget budget_{{}};
  StreamBudget::Account account_{&budget_, [](const absl::Status&) {}};
  std::unique_ptr<Queue> queue_;
  std::shared_ptr<std::string> received_ = std::make_shared<std::string>();
  std::atomic<int> event_{kNone};
  std::atomic<bool> hold_{false};
  std::thread transport_;
  std::thread canceller_;
};

TEST(StreamQueueThreadsTest, DeliversEverythingInOrderAcrossThreads) {
  for (uint32_t round = 0; round < 30; ++round) {
    std::shared_ptr<std::string> received;
    std::string sent;
    {
      Call call(/*cancels=*/false, round);
      received = call.received();
      for (int i = 0; i < 30; ++i) {
        const std::string text = std::to_string(i) + " ";
        sent += text;
        call.Push(text);
      }
      call.End();
    }
    EXPECT_EQ(*received, sent);
  }
}

TEST(StreamQueueThreadsTest, ACancelAtAnyTimeEndsTheCallWithAPrefixDelivered) {
  for (uint32_t round = 0; round < 100; ++round) {
    std::shared_ptr<std::string> received;
    std::string sent;
    {
      Call call(/*cancels=*/true, round);
      received = call.received();
      for (int i = 0; i < 30; ++i) {
        const std::string text = std::to_string(i) + " ";
        sent += text;
        call.Push(text);
      }
      call.End();
    }
    EXPECT_EQ(sent.compare(0, received->size(), *received), 0);
  }
}

}  // namespace
}  // namespace baton
