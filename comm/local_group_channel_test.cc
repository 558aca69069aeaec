#include "comm/local_group_channel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace baton {
namespace {

TEST(LocalGroupChannelTest, NothingIsEverReceived) {
  LocalGroupChannel channel;
  std::vector<ChannelMessage> received(3);
  channel.Receive(&received);
  EXPECT_TRUE(received.empty());
  EXPECT_TRUE(channel.status().ok());
}

TEST(LocalGroupChannelTest, AWakeEndsOneWaitTheNextOrThePresent) {
  LocalGroupChannel channel;
  channel.Wake();
  channel.Wait(absl::InfiniteDuration());
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> asked = false;
    std::thread waker([&] {
      asked.store(true);
      channel.Wake();
    });
    while (!asked.load()) channel.Wait(absl::InfiniteDuration());
    waker.join();
  }
}

TEST(LocalGroupChannelTest, AWaitTakesItsWakeWithIt) {
  LocalGroupChannel channel;
  channel.Wake();
  channel.Wake();
  channel.Wait(absl::InfiniteDuration());
  std::atomic<bool> woken = false;
  std::thread waker([&] {
    woken.store(true);
    channel.Wake();
  });
  // Nothing but the waker ends it.
  channel.Wait(absl::InfiniteDuration());
  EXPECT_TRUE(woken.load());
  waker.join();
}

TEST(LocalGroupChannelTest, AWaitEndsByItsTimeout) {
  LocalGroupChannel channel;
  for (const absl::Duration timeout :
       {absl::Milliseconds(3), absl::ZeroDuration(), -absl::Seconds(1)}) {
    channel.Wait(timeout);
  }
  EXPECT_TRUE(channel.status().ok());
}

TEST(LocalGroupChannelTest, AnEndEndsAllWaitsAndStays) {
  LocalGroupChannel channel;
  std::thread ender([&] { channel.End(); });
  for (int i = 0; i < 3; ++i) channel.Wait(absl::InfiniteDuration());
  ender.join();
  EXPECT_EQ(channel.status().code(), absl::StatusCode::kUnavailable);
}

TEST(LocalGroupChannelDeathTest, ThereIsNobodyToSendTo) {
  LocalGroupChannel channel;
  EXPECT_DEATH(channel.Send(1, "x"), "there is no other process");
}

}  // namespace
}  // namespace baton
