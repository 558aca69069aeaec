#include "comm/ucx_group_channel.h"

#include <gtest/gtest.h>

#include "base/logging.h"
#include "comm/testing/group_channel_contract.h"
#include "comm/wire.h"

namespace baton {
namespace {

constexpr uint64_t kEpoch = 7;

std::unique_ptr<UcxGroupChannel> MakeChannel(uint32_t max_processes) {
  auto channel = UcxGroupChannel::Create("lo", max_processes);
  CHECK_OK(channel.status());
  return *std::move(channel);
}

GroupChannels MakeConnected(uint32_t num_processes) {
  std::vector<std::unique_ptr<UcxGroupChannel>> channels;
  std::vector<std::string> addresses;
  for (uint32_t p = 0; p < num_processes; ++p) {
    channels.push_back(MakeChannel(num_processes + 1));
    addresses.push_back(channels.back()->address());
  }
  GroupChannels connected;
  for (uint32_t p = 0; p < num_processes; ++p) {
    CHECK_OK(channels[p]->Connect(kEpoch, p, addresses));
    connected.push_back(std::move(channels[p]));
  }
  return connected;
}

INSTANTIATE_TEST_SUITE_P(Ucx, GroupChannelContract,
                         testing::Values(&MakeConnected));

TEST(UcxGroupChannelTest, APeerThatIsGoneIsNamed) {
  GroupChannels channels = MakeConnected(3);
  std::vector<ChannelMessage> received;
  channels[1]->Send(0, "hello");
  do {
    channels[1]->Receive(&received);
    channels[0]->Receive(&received);
  } while (received.empty());
  channels[1].reset();
  while (channels[0]->status().ok()) {
    channels[0]->Wait(absl::Minutes(10));
    channels[0]->Receive(&received);
  }
  EXPECT_EQ(channels[0]->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(channels[0]->status().message().find("process 1 of the group is"),
            absl::string_view::npos)
      << channels[0]->status();
  channels[0]->Wait(absl::InfiniteDuration());
  // Its end keeps the reason.
  channels[0]->End();
  EXPECT_NE(channels[0]->status().message().find("process 1 of the group is"),
            absl::string_view::npos);
}

TEST(UcxGroupChannelTest, AnAddressThatIsNoneIsRefused) {
  const auto channel = MakeChannel(2);
  const std::string addresses[] = {channel->address(), "nowhere"};
  EXPECT_EQ(channel->Connect(kEpoch, 0, addresses).code(),
            absl::StatusCode::kInvalidArgument);
}

// A channel, process 0 of two, whose peer is played by a bare messenger.
class UcxGroupChannelPeerTest : public testing::Test {
 protected:
  UcxGroupChannelPeerTest() {
    auto created = UcxMessenger::Create("lo", 2);
    CHECK_OK(created.status());
    peer_ = *std::move(created);
    const std::string addresses[] = {channel_->address(), peer_->address()};
    CHECK_OK(channel_->Connect(kEpoch, 0, addresses));
    auto connected = peer_->Connect(channel_->address());
    CHECK_OK(connected.status());
    id_ = *connected;
  }

  void Say(uint64_t epoch, uint32_t from, uint64_t number,
           const std::string& text) {
    peer_->SendMessage(
        id_, WireWriter().Int(epoch).Int(from).Int(number).Take() + text);
  }
  // Until `num` messages of our peer are here, or the channel has ended.
  std::vector<std::string> Receive(size_t num) {
    std::vector<std::string> all;
    std::vector<ChannelMessage> received;
    while (all.size() < num && channel_->status().ok()) {
      peer_->Poll(&events_);
      channel_->Receive(&received);
      for (ChannelMessage& message : received) {
        EXPECT_EQ(message.from, 1u);
        all.push_back(std::move(message.bytes));
      }
    }
    return all;
  }

  std::unique_ptr<UcxGroupChannel> channel_ = MakeChannel(2);
  std::unique_ptr<UcxMessenger> peer_;
  PeerId id_;
  std::vector<TransportEvent> events_;
};

TEST_F(UcxGroupChannelPeerTest, WhatIsForeignOrComesAgainIsDroppedAndCounted) {
  Say(kEpoch, 1, 0, "a");
  Say(kEpoch - 1, 1, 1, "of another epoch");
  Say(kEpoch, 1, 0, "again");
  Say(kEpoch, 0, 0, "of ourselves");
  Say(kEpoch, 2, 0, "of nobody");
  Say(kEpoch, 1, 1, std::string(GroupChannel::kMaxMessageBytes + 1, 'x'));
  peer_->SendMessage(id_, "short");
  Say(kEpoch, 1, 1, "b");
  EXPECT_EQ(Receive(2), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(channel_->num_dropped(), 6u);
  EXPECT_TRUE(channel_->status().ok());
}

TEST_F(UcxGroupChannelPeerTest, WhatComesEarlyWaitsForWhatIsMissing) {
  Say(kEpoch, 1, 2, "c");
  Say(kEpoch, 1, 1, "b");
  Say(kEpoch, 1, 1, "again");
  Say(kEpoch, 1, 4, "e");
  Say(kEpoch, 1, 0, "a");
  EXPECT_EQ(Receive(3), (std::vector<std::string>{"a", "b", "c"}));
  Say(kEpoch, 1, 3, "d");
  EXPECT_EQ(Receive(2), (std::vector<std::string>{"d", "e"}));
  EXPECT_EQ(channel_->num_dropped(), 1u);
}

TEST_F(UcxGroupChannelPeerTest, AMessageThatNeverComesLosesItsSender) {
  for (size_t i = 0; i <= UcxGroupChannel::kMaxEarlyMessages; ++i) {
    Say(kEpoch, 1, 1 + i, "early");
  }
  EXPECT_EQ(Receive(1), std::vector<std::string>());
  EXPECT_NE(channel_->status().message().find("a message is missing"),
            absl::string_view::npos)
      << channel_->status();
}

}  // namespace
}  // namespace baton
