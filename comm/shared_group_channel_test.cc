#include "comm/shared_group_channel.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/logging.h"
#include "comm/shared_memory.h"
#include "comm/testing/group_channel_contract.h"

namespace baton {
namespace {

// Of the processes' memory.
using SharedMemoryOfAll = std::shared_ptr<SharedGroupMemory>;

SharedMemoryOfAll MakeMemory(uint32_t max_processes) {
  auto memory = SharedGroupMemory::Create(max_processes);
  CHECK_OK(memory.status());
  return *std::move(memory);
}

GroupChannels ChannelsIn(const SharedMemoryOfAll& memory, uint32_t num) {
  GroupChannels channels;
  for (uint32_t p = 0; p < num; ++p) {
    channels.push_back(std::make_unique<SharedGroupChannel>(memory, p, num));
  }
  return channels;
}

INSTANTIATE_TEST_SUITE_P(Shared, GroupChannelContract,
                         testing::Values([](uint32_t num_processes) {
                           return ChannelsIn(MakeMemory(num_processes + 3),
                                             num_processes);
                         }));

TEST(SharedGroupChannelTest, MemoryOfAnotherSizeIsRefused) {
  const SharedMemoryOfAll memory = MakeMemory(4);
  EXPECT_TRUE(SharedGroupMemory::Open(4, memory->path()).ok());
  EXPECT_EQ(SharedGroupMemory::Open(5, memory->path()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(SharedGroupChannelTest, TheMemoryOfManyProcessesIsCheapUntilUsed) {
  const SharedMemoryOfAll memory = MakeMemory(1024);
  const GroupChannels channels = ChannelsIn(memory, 2);
  channels[0]->Send(1, "hello");
  std::vector<ChannelMessage> received;
  channels[1]->Receive(&received);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].from, 0u);
  EXPECT_EQ(received[0].bytes, "hello");
}

TEST(SharedGroupChannelTest, APeerThatTakesNothingIsLostAtTheLimit) {
  const GroupChannels channels = ChannelsIn(MakeMemory(2), 2);
  const std::string message(GroupChannel::kMaxMessageBytes, 'm');
  for (size_t sent = 0;
       sent + message.size() < SharedGroupChannel::kMaxQueuedBytes - (64 << 10);
       sent += message.size()) {
    channels[0]->Send(1, message);
  }
  EXPECT_TRUE(channels[0]->status().ok());
  for (int i = 0; i < 4; ++i) channels[0]->Send(1, message);
  EXPECT_EQ(channels[0]->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(channels[0]->status().message().find("process 1 of the group"),
            absl::string_view::npos)
      << channels[0]->status();
  channels[0]->Wait(absl::InfiniteDuration());
  EXPECT_TRUE(channels[1]->status().ok());
}

// The first place that holds `bytes`.
std::byte* Find(const SharedMemory& memory, std::string_view bytes) {
  void* const found =
      memmem(memory.data(), memory.size(), bytes.data(), bytes.size());
  CHECK(found != nullptr);
  return static_cast<std::byte*>(found);
}

TEST(SharedGroupChannelTest, ADamagedLengthIsAStatus) {
  const SharedMemoryOfAll shared = MakeMemory(3);
  const GroupChannels channels = ChannelsIn(shared, 3);
  auto memory = SharedMemory::Open(shared->path(),
                                   std::filesystem::file_size(shared->path()));
  ASSERT_TRUE(memory.ok()) << memory.status();
  channels[1]->Send(0, "whole");
  channels[1]->Send(0, "damaged");
  std::byte* const message = Find(**memory, "damaged");
  const uint32_t length = GroupChannel::kMaxMessageBytes + 1;
  std::memcpy(message - sizeof length, &length, sizeof length);
  std::vector<ChannelMessage> received;
  channels[0]->Receive(&received);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].bytes, "whole");
  EXPECT_EQ(channels[0]->status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(channels[0]->status().message().find("process 1 of the group"),
            absl::string_view::npos)
      << channels[0]->status();
  channels[0]->Wait(absl::InfiniteDuration());
  channels[0]->Receive(&received);
  EXPECT_TRUE(received.empty());
}

TEST(SharedGroupChannelTest, DamagedCountsAreAStatus) {
  const SharedMemoryOfAll shared = MakeMemory(2);
  const GroupChannels channels = ChannelsIn(shared, 2);
  auto memory = SharedMemory::Open(shared->path(),
                                   std::filesystem::file_size(shared->path()));
  ASSERT_TRUE(memory.ok()) << memory.status();
  channels[1]->Send(0, "message");
  // A length and seven letters.
  uint64_t written = 4 + 7;
  std::byte* const count =
      Find(**memory, {reinterpret_cast<const char*>(&written), sizeof written});
  written = uint64_t{1} << 40;
  std::memcpy(count, &written, sizeof written);
  std::vector<ChannelMessage> received;
  channels[0]->Receive(&received);
  EXPECT_TRUE(received.empty());
  EXPECT_EQ(channels[0]->status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace baton
