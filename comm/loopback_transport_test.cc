#include "comm/loopback_transport.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace baton {
namespace {

constexpr size_t kBytes = 256;

template <typename Event>
std::vector<Event> Take(Transport* transport) {
  std::vector<TransportEvent> events;
  transport->Poll(&events);
  std::vector<Event> of_kind;
  for (TransportEvent& event : events) {
    if (auto* e = std::get_if<Event>(&event)) of_kind.push_back(std::move(*e));
  }
  return of_kind;
}

class LoopbackTransportTest : public ::testing::Test {
 protected:
  LoopbackTransportTest()
      : a_(network_.CreateEndpoint("a", {})),
        b_(network_.CreateEndpoint("b", {})),
        to_b_(a_->Connect("b").value()) {}

  LoopbackNetwork network_;
  std::unique_ptr<Transport> a_;
  std::unique_ptr<Transport> b_;
  const PeerId to_b_;
  std::vector<std::byte> from_ = std::vector<std::byte>(kBytes, std::byte{5});
  std::vector<std::byte> into_ = std::vector<std::byte>(kBytes);
};

TEST_F(LoopbackTransportTest, MessagesArriveInOrder) {
  a_->SendMessage(to_b_, "one");
  a_->SendMessage(to_b_, "two");
  const auto messages = Take<MessageReceived>(b_.get());
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].message, "one");
  EXPECT_EQ(messages[1].message, "two");
  EXPECT_TRUE(Take<MessageReceived>(b_.get()).empty());
}

TEST_F(LoopbackTransportTest, TheHookLosesRepeatsAndDelays) {
  network_.set_hook([](auto, auto, std::string_view message) {
    if (message == "lost") return LoopbackFate{.copies = 0};
    if (message == "twice") return LoopbackFate{.copies = 2};
    return LoopbackFate{.delay_polls = 1};
  });
  a_->SendMessage(to_b_, "late");
  a_->SendMessage(to_b_, "lost");
  a_->SendMessage(to_b_, "twice");
  EXPECT_EQ(Take<MessageReceived>(b_.get()).size(), 2u);
  const auto late = Take<MessageReceived>(b_.get());
  ASSERT_EQ(late.size(), 1u);
  EXPECT_EQ(late[0].message, "late");
}

TEST_F(LoopbackTransportTest, ABlockMovesIntoTheReceiveOfItsTag) {
  const TransferId receive = b_->PostReceive(7, into_);
  const TransferId send = a_->PostSend(to_b_, 7, from_);
  EXPECT_TRUE(Take<TransferDone>(a_.get()).empty());
  const auto received = Take<TransferDone>(b_.get());
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(received[0].id, receive);
  EXPECT_EQ(into_, from_);
  const auto sent = Take<TransferDone>(a_.get());
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].id, send);
}

TEST_F(LoopbackTransportTest, ABlockWithoutAFittingReceiveIsDropped) {
  b_->PostReceive(7, std::span(into_).first(kBytes / 2));
  a_->PostSend(to_b_, 7, from_);  // Of another size.
  a_->PostSend(to_b_, 8, from_);  // Of another tag.
  EXPECT_TRUE(Take<TransferDone>(b_.get()).empty());
  EXPECT_EQ(Take<TransferDone>(a_.get()).size(), 2u);
  EXPECT_EQ(into_, std::vector<std::byte>(kBytes));
}

TEST_F(LoopbackTransportTest, ACancelledReceiveTakesNothing) {
  const TransferId receive = b_->PostReceive(7, into_);
  b_->Cancel(receive);
  a_->PostSend(to_b_, 7, from_);
  const auto done = Take<TransferDone>(b_.get());
  ASSERT_EQ(done.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(done[0].status));
  EXPECT_EQ(into_, std::vector<std::byte>(kBytes));
}

TEST_F(LoopbackTransportTest, ADeathEndsSendsAndIsTold) {
  a_->PostSend(to_b_, 7, from_);
  network_.Kill("b", true);
  std::vector<TransportEvent> events;
  a_->Poll(&events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(absl::IsUnavailable(std::get<TransferDone>(events[0]).status));
  EXPECT_EQ(std::get<PeerFailed>(events[1]).peer, to_b_);
  // A new connection to the dead is told so too.
  EXPECT_NE(a_->Connect("b").value(), to_b_);
  EXPECT_EQ(Take<PeerFailed>(a_.get()).size(), 1u);
}

TEST_F(LoopbackTransportTest, ASilentDeathShowsWhenThePeerIsClosed) {
  network_.Kill("b", false);
  a_->PostSend(to_b_, 7, from_);
  EXPECT_TRUE(Take<TransferDone>(a_.get()).empty());
  a_->ClosePeer(to_b_);
  std::vector<TransportEvent> events;
  a_->Poll(&events);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(absl::IsCancelled(std::get<PeerFailed>(events[1]).status));
}

TEST_F(LoopbackTransportTest, ARegionIsMappedOnlyAsItsOwnerDescribesIt) {
  std::byte* const region = b_->AllocateRegion(kBytes).value();
  const RemoteRegion right{.host_id = b_->host_id(),
                           .remote_key = b_->remote_key(),
                           .base_address = reinterpret_cast<uint64_t>(region),
                           .bytes = kBytes};
  EXPECT_EQ(a_->MapRemote(to_b_, right), region);
  RemoteRegion wrong = right;
  for (const size_t bytes : {kBytes - 1, kBytes + 1}) {
    wrong.bytes = bytes;
    EXPECT_EQ(a_->MapRemote(to_b_, wrong), nullptr) << bytes;
  }
  wrong = right;
  wrong.host_id = "elsewhere";
  EXPECT_EQ(a_->MapRemote(to_b_, wrong), nullptr);
}

TEST_F(LoopbackTransportTest, TwoThreadsPassMessagesByWaiting) {
  constexpr int kMessages = 2000;
  std::thread echo([&] {
    const PeerId to_a = b_->Connect("a").value();
    for (int echoed = 0; echoed < kMessages;) {
      for (MessageReceived& m : Take<MessageReceived>(b_.get())) {
        b_->SendMessage(to_a, std::move(m.message));
        ++echoed;
      }
      if (echoed < kMessages) b_->Wait(absl::Seconds(10));
    }
  });
  int heard = 0;
  a_->SendMessage(to_b_, "0");
  while (heard < kMessages) {
    for (MessageReceived& m : Take<MessageReceived>(a_.get())) {
      ASSERT_EQ(m.message, std::to_string(heard));
      if (++heard < kMessages) a_->SendMessage(to_b_, std::to_string(heard));
    }
    if (heard < kMessages) a_->Wait(absl::Seconds(10));
  }
  echo.join();
}

}  // namespace
}  // namespace baton
