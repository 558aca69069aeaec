#include "server/edge/stream_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
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

TEST(StreamQueueTest, WritesOneAtATimeAndCoalescesWhatWaits) {
  Queue queue(100);
  ASSERT_EQ(queue.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue.Push({'a', "2"}), Action::kNothing);
  EXPECT_EQ(queue.Push({'a', "3"}), Action::kNothing);
  EXPECT_EQ(queue.Push({'b', "4"}), Action::kNothing);
  EXPECT_EQ(queue.message()->text, "1");
  ASSERT_EQ(queue.OnWriteDone(true), Action::kWrite);
  EXPECT_EQ(queue.message()->text, "23");
  ASSERT_EQ(queue.OnWriteDone(true), Action::kWrite);
  EXPECT_EQ(queue.message()->text, "4");
  EXPECT_EQ(queue.OnWriteDone(true), Action::kNothing);
}

TEST(StreamQueueTest, CoalescesWhatTakesTurns) {
  Queue queue(100);
  ASSERT_EQ(queue.Push({'x', "0"}), Action::kWrite);
  for (const char* text : {"1", "2", "3"}) {
    for (const char kind : {'a', 'b', 'c'}) {
      EXPECT_EQ(queue.Push({kind, text}), Action::kNothing);
    }
  }
  for (const char kind : {'a', 'b', 'c'}) {
    ASSERT_EQ(queue.OnWriteDone(true), Action::kWrite);
    EXPECT_EQ(queue.message()->kind, kind);
    EXPECT_EQ(queue.message()->text, "123");
  }
  EXPECT_EQ(queue.OnWriteDone(true), Action::kNothing);
}

TEST(StreamQueueTest, TriesOnlySoManyToCoalesce) {
  Queue queue(100'000);
  ASSERT_EQ(queue.Push({'x', "0"}), Action::kWrite);
  const auto push = [&](int kinds) {
    for (int i = 0; i < kinds; ++i) {
      ASSERT_EQ(queue.Push({static_cast<char>(i), "1"}), Action::kNothing);
    }
  };
  const auto drain = [&] {
    size_t writes = 0;
    while (queue.OnWriteDone(true) == Action::kWrite) ++writes;
    return writes;
  };
  const int distance = static_cast<int>(Queue::kMaxMergeDistance);
  push(distance);
  push(distance);
  EXPECT_EQ(drain(), Queue::kMaxMergeDistance);
  ASSERT_EQ(queue.Push({'x', "0"}), Action::kWrite);
  push(distance + 1);
  ASSERT_EQ(queue.Push({0, "1"}), Action::kNothing);  // The first is too far.
  EXPECT_EQ(drain(), Queue::kMaxMergeDistance + 2);
}

TEST(StreamQueueTest, FinishesOnceAfterAllIsWritten) {
  Queue queue(100);
  ASSERT_EQ(queue.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue.Push({'a', "2"}), Action::kNothing);
  EXPECT_EQ(queue.End(absl::AbortedError("why")), Action::kNothing);
  ASSERT_EQ(queue.OnWriteDone(true), Action::kWrite);
  ASSERT_EQ(queue.OnWriteDone(true), Action::kFinish);
  EXPECT_EQ(queue.status(), absl::AbortedError("why"));
  EXPECT_EQ(queue.OnPeerGone(), Action::kNothing);
}

TEST(StreamQueueTest, AnEmptyStreamFinishesAtItsEnd) {
  Queue queue(100);
  EXPECT_EQ(queue.End(absl::OkStatus()), Action::kFinish);
}

TEST(StreamQueueTest, APeerThatIsGoneDropsTheQueueAndWaitsForTheEnd) {
  Queue queue(100);
  ASSERT_EQ(queue.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue.Push({'a', "2"}), Action::kNothing);
  EXPECT_EQ(queue.OnPeerGone(), Action::kNothing);
  EXPECT_EQ(queue.OnWriteDone(false), Action::kNothing);
  EXPECT_EQ(queue.Push({'a', "3"}), Action::kNothing);
  EXPECT_EQ(queue.End(absl::CancelledError("")), Action::kFinish);
}

TEST(StreamQueueTest, AFailedWriteIsAPeerThatIsGone) {
  Queue queue(100);
  ASSERT_EQ(queue.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue.Push({'b', "2"}), Action::kNothing);
  EXPECT_EQ(queue.End(absl::OkStatus()), Action::kNothing);
  EXPECT_EQ(queue.OnWriteDone(false), Action::kFinish);
}

TEST(StreamQueueTest, NeverFinishesOverAWriteInFlight) {
  Queue queue(100);
  ASSERT_EQ(queue.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue.OnPeerGone(), Action::kNothing);
  EXPECT_EQ(queue.End(absl::CancelledError("")), Action::kNothing);
  EXPECT_EQ(queue.OnWriteDone(false), Action::kFinish);
}

TEST(StreamQueueTest, CutsAReaderAtTheBoundOnceAndTakesWhatFits) {
  Queue queue(kMessageBytes + 4);
  ASSERT_EQ(queue.Push({'a', "1"}), Action::kWrite);
  EXPECT_EQ(queue.Push({'a', "1234"}), Action::kNothing);
  EXPECT_EQ(queue.Push({'a', "5"}), Action::kCut);
  EXPECT_EQ(queue.Push({'a', "6"}), Action::kNothing);
  EXPECT_EQ(queue.OnWriteDone(false), Action::kNothing);
  EXPECT_EQ(queue.End(absl::CancelledError("")), Action::kFinish);
}

TEST(StreamQueueTest, AMessageThatNothingWaitsBeforeMayPassTheBound) {
  Queue queue(kMessageBytes + 4);
  ASSERT_EQ(queue.Push({'a', "longer"}), Action::kWrite);
  EXPECT_EQ(queue.Push({'a', "longer"}), Action::kNothing);
  ASSERT_EQ(queue.OnWriteDone(true), Action::kWrite);
  EXPECT_EQ(queue.message()->text, "longer");
  EXPECT_EQ(queue.Push({'a', "longer"}), Action::kNothing);
  EXPECT_EQ(queue.Push({'a', "1"}), Action::kCut);
}

TEST(StreamQueueTest, MergedMessagesGiveTheirBytesBack) {
  Queue queue(2 * kMessageBytes + 4);
  ASSERT_EQ(queue.Push({'a', "1"}), Action::kWrite);
  for (int merge = 0; merge < 10'000; ++merge) {
    ASSERT_EQ(queue.Push({'a', "12"}), Action::kNothing);
    ASSERT_EQ(queue.Push({'a', "34"}), Action::kNothing) << merge;
    ASSERT_EQ(queue.OnWriteDone(true), Action::kWrite);
    ASSERT_EQ(queue.message()->text, "1234");
  }
}

// A call as gRPC would run it: the transport's thread reports writes, another
// cancels, and whoever is told to finish deletes the queue, as OnDone does.
class Call {
 public:
  Call(bool cancels, uint32_t seed) : seed_(seed) {
    queue_ = std::make_unique<Queue>(1 << 20);
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
  std::unique_ptr<Queue> queue_;
  std::shared_ptr<std::string> received_ = std::make_shared<std::string>();
  std::atomic<int> event_{kNone};
  std::atomic<bool> hold_{false};
  std::thread transport_;
  std::thread canceller_;
};

TEST(StreamQueueTest, DeliversEverythingInOrderAcrossThreads) {
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

TEST(StreamQueueTest, ACancelAtAnyTimeEndsTheCallWithAPrefixDelivered) {
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
