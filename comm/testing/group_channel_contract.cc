#include "comm/testing/group_channel_contract.h"

#include <algorithm>
#include <atomic>
#include <latch>
#include <random>
#include <string>
#include <thread>

namespace baton {
namespace {

// Calls body(process) for every process on a thread of its own.
void RunProcesses(uint32_t num_processes, const auto& body) {
  std::vector<std::thread> threads;
  for (uint32_t p = 0; p < num_processes; ++p) {
    threads.emplace_back([&body, p] { body(p); });
  }
  for (std::thread& thread : threads) thread.join();
}

// What a process sends to another one: random lengths, from a seed that tells
// this pair's.
class Stream {
 public:
  Stream(uint32_t from, uint32_t to, size_t max_size)
      : random_(from * 1000 + to), max_size_(max_size) {}
  std::string Next() {
    std::string message(random_() % (max_size_ + 1), ' ');
    const uint64_t words[] = {random_(), random_()};
    for (size_t i = 0; i < message.size(); ++i) {
      message[i] = static_cast<char>(words[i % 2] >> (i % 61));
    }
    return message;
  }

 private:
  std::mt19937_64 random_;
  const size_t max_size_;
};

// What waits in this process goes out in its calls: it goes on until all are
// there.
void TurnUntilAllAre(std::latch* there, GroupChannel* channel) {
  std::vector<ChannelMessage> received;
  there->count_down();
  while (!there->try_wait()) {
    channel->Wait(absl::Milliseconds(1));
    channel->Receive(&received);
    EXPECT_TRUE(received.empty());
  }
}

struct Traffic {
  uint32_t num_processes = 2;
  int num_messages = 1;  // From each to each.
  size_t max_size = 0;
  // Nobody receives before all have sent everything.
  bool fills = false;
};

// What one process sends to and receives from all others.
class TrafficOfOne {
 public:
  TrafficOfOne(const Traffic& traffic, uint32_t me, GroupChannel* channel)
      : me_(me),
        channel_(channel),
        missing_(traffic.num_processes, traffic.num_messages) {
    missing_[me] = 0;
    for (uint32_t p = 0; p < traffic.num_processes; ++p) {
      out_.emplace_back(me, p, traffic.max_size);
      in_.emplace_back(p, me, traffic.max_size);
    }
  }

  // To each.
  void SendOne() {
    for (uint32_t p = 0; p < out_.size(); ++p) {
      if (p != me_) channel_->Send(p, out_[p].Next());
    }
  }
  void Receive() {
    channel_->Receive(&received_);
    for (const ChannelMessage& message : received_) {
      const uint32_t from = message.from;
      good_ = good_ && from < in_.size() && missing_[from]-- > 0 &&
              message.bytes == in_[from].Next();
    }
  }
  bool is_good() const { return good_; }
  bool is_complete() const {
    return std::ranges::all_of(missing_, [](int m) { return m == 0; });
  }

 private:
  const uint32_t me_;
  GroupChannel* const channel_;
  std::vector<int> missing_;  // Of each sender.
  std::vector<Stream> out_, in_;
  std::vector<ChannelMessage> received_;
  bool good_ = true;
};

// Sends everything to everyone, a round at a time, and receives what all send.
void RunTraffic(const Traffic& traffic, const GroupChannels& channels) {
  std::latch all_sent(traffic.num_processes);
  std::latch all_received(traffic.num_processes);
  RunProcesses(traffic.num_processes, [&](uint32_t me) {
    GroupChannel* const channel = channels[me].get();
    TrafficOfOne mine(traffic, me, channel);
    for (int i = 0; i < traffic.num_messages; ++i) {
      mine.SendOne();
      if (!traffic.fills) mine.Receive();
    }
    if (traffic.fills) all_sent.arrive_and_wait();
    while (!mine.is_complete() && mine.is_good()) {
      channel->Wait(absl::Minutes(10));
      mine.Receive();
    }
    EXPECT_TRUE(mine.is_good());
    TurnUntilAllAre(&all_received, channel);
    EXPECT_TRUE(channel->status().ok()) << channel->status();
  });
}

}  // namespace

TEST_P(GroupChannelContract, AllToAllEachMessageArrivesOnceAndInOrder) {
  for (const uint32_t num_processes : {2u, 3u, 4u, 9u}) {
    RunTraffic(
        {.num_processes = num_processes, .num_messages = 300, .max_size = 120},
        GetParam()(num_processes));
  }
  RunTraffic({.num_processes = 4, .num_messages = 100, .max_size = 20'000},
             GetParam()(4));
}

TEST_P(GroupChannelContract, LongMessagesComeWholeBesideShortOnes) {
  RunTraffic({.num_processes = 3,
              .num_messages = 40,
              .max_size = GroupChannel::kMaxMessageBytes},
             GetParam()(3));
}

TEST_P(GroupChannelContract, BothDirectionsFillUpAtOnceAndBlockNobody) {
  RunTraffic({.num_processes = 2,
              .num_messages = 60,
              .max_size = GroupChannel::kMaxMessageBytes,
              .fills = true},
             GetParam()(2));
  RunTraffic({.num_processes = 4,
              .num_messages = 3000,
              .max_size = 100,
              .fills = true},
             GetParam()(4));
}

TEST_P(GroupChannelContract, TheLongestAndTheEmptyMessageArrive) {
  const GroupChannels channels = GetParam()(2);
  const std::string longest(GroupChannel::kMaxMessageBytes, 'l');
  std::latch all_received(2);
  RunProcesses(2, [&](uint32_t me) {
    GroupChannel& channel = *channels[me];
    channel.Send(1 - me, "");
    channel.Send(1 - me, longest);
    channel.Send(1 - me, "");
    std::vector<std::string> all;
    std::vector<ChannelMessage> received;
    while (all.size() < 3) {
      channel.Wait(absl::Minutes(10));
      channel.Receive(&received);
      for (const ChannelMessage& message : received) {
        all.push_back(message.bytes);
      }
    }
    EXPECT_TRUE(all == (std::vector<std::string>{"", longest, ""}));
    TurnUntilAllAre(&all_received, &channel);
  });
}

// A wake-up that is lost hangs it.
TEST_P(GroupChannelContract, AMessageEndsAWait) {
  const int kRounds = 2000;
  const GroupChannels channels = GetParam()(2);
  std::latch all_received(2);
  RunProcesses(2, [&](uint32_t me) {
    GroupChannel& channel = *channels[me];
    std::vector<ChannelMessage> received;
    if (me == 0) channel.Send(1, "ball");
    for (int round = 0; round < kRounds; ++round) {
      do {
        channel.Wait(absl::InfiniteDuration());
        channel.Receive(&received);
      } while (received.empty());
      ASSERT_EQ(received.size(), 1u);
      ASSERT_EQ(received[0].bytes, "ball");
      if (me == 1 || round < kRounds - 1) {
        channel.Send(1 - me, received[0].bytes);
      }
    }
    TurnUntilAllAre(&all_received, &channel);
  });
}

TEST_P(GroupChannelContract, ReceiveReplacesWhatWasThere) {
  const GroupChannels channels = GetParam()(2);
  std::vector<ChannelMessage> received(3);
  channels[0]->Receive(&received);
  EXPECT_TRUE(received.empty());
  EXPECT_TRUE(channels[0]->status().ok());
}

TEST_P(GroupChannelContract, AWaitEndsByItsTimeout) {
  const GroupChannels channels = GetParam()(2);
  for (const absl::Duration timeout :
       {absl::Milliseconds(3), absl::ZeroDuration(), -absl::Seconds(1)}) {
    channels[0]->Wait(timeout);
  }
  EXPECT_TRUE(channels[0]->status().ok());
}

TEST_P(GroupChannelContract, AWakeEndsTheNextWaitAlsoIfMessagesCameBetween) {
  const GroupChannels channels = GetParam()(2);
  std::vector<ChannelMessage> received;
  channels[0]->Wake();
  channels[0]->Wait(absl::InfiniteDuration());
  channels[0]->Wake();
  channels[1]->Send(0, "message");
  do {
    channels[1]->Receive(&received);
    channels[0]->Receive(&received);
  } while (received.empty());
  channels[0]->Wait(absl::InfiniteDuration());
}

TEST_P(GroupChannelContract, AWakeOfAnotherThreadEndsTheWait) {
  const GroupChannels channels = GetParam()(2);
  for (int round = 1; round <= 200; ++round) {
    std::atomic<bool> asked = false;
    std::thread waker([&] {
      asked.store(true);
      channels[0]->Wake();
    });
    while (!asked.load()) channels[0]->Wait(absl::InfiniteDuration());
    waker.join();
  }
}

TEST_P(GroupChannelContract, AnEndEndsEveryonesWaitAndAllTraffic) {
  const GroupChannels channels = GetParam()(4);
  std::latch all_run(5);
  std::thread ender([&] {
    all_run.arrive_and_wait();
    channels[2]->End();
  });
  RunProcesses(4, [&](uint32_t me) {
    GroupChannel& channel = *channels[me];
    std::vector<ChannelMessage> received;
    all_run.arrive_and_wait();
    while (channel.status().ok()) {
      channel.Wait(absl::InfiniteDuration());
      channel.Receive(&received);
    }
    EXPECT_EQ(channel.status().code(), absl::StatusCode::kUnavailable);
    channel.Send((me + 1) % 4, "late");
    for (int i = 0; i < 3; ++i) channel.Wait(absl::InfiniteDuration());
    channel.Receive(&received);
    EXPECT_TRUE(received.empty());
  });
  ender.join();
}

}  // namespace baton
