#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/logging.h"
#include "comm/shared_group_channel.h"

namespace baton {
namespace {

// Runs `body` with this process's channel, and exits with its answer.
pid_t ForkProcess(const SharedGroupMemory& memory, uint32_t process,
                  uint32_t num_processes,
                  const std::function<bool(SharedGroupChannel*)>& body) {
  const pid_t child = fork();
  CHECK_GE(child, 0);
  if (child != 0) return child;
  auto mine = SharedGroupMemory::Open(num_processes, memory.path());
  CHECK_OK(mine.status());
  SharedGroupChannel channel(*std::move(mine), process, num_processes);
  _exit(body(&channel) ? 0 : 1);
}

// How it ended.
int WaitFor(pid_t child) {
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return status;
}

// Of a process' `number`th message: its content tells all.
std::string MessageOf(uint32_t from, uint32_t number) {
  std::mt19937 random(from * 100'000 + number);
  // Now and then one that is longer than a ring.
  const size_t size = random() % 500 == 0 ? 100'000 : random() % 120;
  std::string message = std::to_string(number) + ":";
  for (size_t i = 0; i < size; ++i) {
    message.push_back(static_cast<char>('a' + (i + number) % 26));
  }
  return message;
}

// Sends `num` messages to each and receives as many from each, then "done".
class AllToAll {
 public:
  AllToAll(uint32_t me, uint32_t num_processes, uint32_t num)
      : me_(me), num_(num), next_(num_processes, 0) {}

  bool Run(SharedGroupChannel* channel) {
    for (uint32_t i = 0; i < num_; ++i) {
      SendToAll(MessageOf(me_, i), channel);
      if (!Receive(channel)) return false;
    }
    if (!ReceiveUntilAllAre(num_, channel)) return false;
    SendToAll("done", channel);
    // A peer that is done has taken all that we owed it, but for this.
    return ReceiveUntilAllAre(num_ + 1, channel) && Receive(channel) &&
           channel->status().ok();
  }

 private:
  void SendToAll(const std::string& message, SharedGroupChannel* channel) {
    for (uint32_t p = 0; p < next_.size(); ++p) {
      if (p != me_) channel->Send(p, message);
    }
  }
  bool ReceiveUntilAllAre(uint32_t number, SharedGroupChannel* channel) {
    next_[me_] = number;
    while (std::ranges::min(next_) < number) {
      channel->Wait(absl::Minutes(1));
      if (!Receive(channel)) return false;
    }
    return true;
  }
  bool Receive(SharedGroupChannel* channel) {
    channel->Receive(&received_);
    for (const ChannelMessage& message : received_) {
      const uint32_t number = next_[message.from]++;
      if (message.bytes !=
          (number == num_ ? "done" : MessageOf(message.from, number))) {
        return false;
      }
    }
    return true;
  }

  const uint32_t me_;
  const uint32_t num_;
  std::vector<uint32_t> next_;  // Of each sender.
  std::vector<ChannelMessage> received_;
};

TEST(SharedGroupChannelProcessTest, ProcessesExchangeAllToAll) {
  const uint32_t kProcesses = 4;
  auto memory = SharedGroupMemory::Create(kProcesses);
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::vector<pid_t> children;
  for (uint32_t p = 0; p < kProcesses; ++p) {
    children.push_back(
        ForkProcess(**memory, p, kProcesses, [p](SharedGroupChannel* channel) {
          return AllToAll(p, kProcesses, 3000).Run(channel);
        }));
  }
  for (const pid_t child : children) EXPECT_EQ(WaitFor(child), 0);
}

// Floods process 0, ahead by a window of what that acknowledges.
bool Flood(SharedGroupChannel* channel) {
  std::vector<ChannelMessage> received;
  uint32_t acknowledged = 0;
  for (uint32_t i = 0; channel->status().ok(); ++i) {
    channel->Send(0, MessageOf(1, i));
    do {
      if (i >= acknowledged + 2000) channel->Wait(absl::Minutes(1));
      channel->Receive(&received);
      acknowledged += static_cast<uint32_t>(received.size());
    } while (i >= acknowledged + 2000 && channel->status().ok());
  }
  return true;
}

TEST(SharedGroupChannelProcessTest, APeerKilledInMidFloodHarmsNobody) {
  std::mt19937 random(1);
  for (int round = 0; round < 30; ++round) {
    auto memory = SharedGroupMemory::Create(2);
    ASSERT_TRUE(memory.ok()) << memory.status();
    const pid_t child = ForkProcess(**memory, 1, 2, Flood);
    SharedGroupChannel channel(*std::move(memory), 0, 2);
    std::vector<ChannelMessage> received;
    uint32_t num_received = 0;
    const auto receive = [&] {
      channel.Receive(&received);
      for (const ChannelMessage& message : received) {
        ASSERT_EQ(message.bytes, MessageOf(1, num_received));
        ++num_received;
        channel.Send(1, message.bytes);
      }
    };
    const uint32_t kill_at = random() % 4000;
    while (num_received <= kill_at && !HasFatalFailure()) {
      channel.Wait(absl::Minutes(1));
      receive();
    }
    kill(child, SIGKILL);
    EXPECT_TRUE(WIFSIGNALED(WaitFor(child)));
    do {
      receive();  // What it still had sent.
    } while (!received.empty());
    EXPECT_TRUE(channel.status().ok()) << channel.status();
    const std::string longest(GroupChannel::kMaxMessageBytes, 'l');
    for (int i = 0; i < 100; ++i) channel.Send(1, longest);
    EXPECT_EQ(channel.status().code(), absl::StatusCode::kResourceExhausted);
  }
}

bool Echo(SharedGroupChannel* channel) {
  std::vector<ChannelMessage> received;
  channel->Send(0, "here");
  while (channel->status().ok()) {
    channel->Wait(absl::Minutes(1));
    channel->Receive(&received);
    for (const ChannelMessage& message : received) {
      channel->Send(0, message.bytes);
    }
  }
  return true;
}

TEST(SharedGroupChannelProcessTest, AStoppedPeerBlocksNobodyAndMissesNothing) {
  auto memory = SharedGroupMemory::Create(2);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const pid_t child = ForkProcess(**memory, 1, 2, Echo);
  SharedGroupChannel channel(*std::move(memory), 0, 2);
  std::vector<ChannelMessage> received;
  while (received.empty()) {
    channel.Wait(absl::Minutes(1));
    channel.Receive(&received);
  }
  EXPECT_EQ(received[0].bytes, "here");
  kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  const uint32_t kMessages = 10'000;
  for (uint32_t i = 0; i < kMessages; ++i) channel.Send(1, MessageOf(0, i));
  channel.Wait(absl::ZeroDuration());
  channel.Receive(&received);
  EXPECT_TRUE(received.empty());
  kill(child, SIGCONT);
  for (uint32_t echoed = 0; echoed < kMessages;) {
    channel.Wait(absl::Minutes(1));
    channel.Receive(&received);
    for (const ChannelMessage& message : received) {
      ASSERT_EQ(message.bytes, MessageOf(0, echoed++));
    }
  }
  channel.End();
  EXPECT_EQ(WaitFor(child), 0);
}

}  // namespace
}  // namespace baton
