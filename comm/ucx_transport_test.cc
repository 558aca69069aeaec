#include "comm/ucx_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "comm/testing/kv_transfer_side.h"

namespace baton {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);
constexpr size_t kBytes = 100'000;

std::unique_ptr<UcxTransport> Make(UcxMode mode, uint32_t max_peers = 8) {
  auto transport = UcxTransport::Create(
      {.mode = mode, .network_devices = "lo", .max_peers = max_peers});
  CHECK_OK(transport.status());
  return *std::move(transport);
}

// Two transports of one process, polled in turns.
class UcxTransportTest : public ::testing::Test {
 protected:
  // Polls both until `done`.
  template <typename Done>
  void Until(Done done) {
    const absl::Time deadline = absl::Now() + kDeadline;
    while (!done()) {
      ASSERT_LT(absl::Now(), deadline);
      a_->Poll(&at_a_);
      b_->Poll(&at_b_);
    }
  }
  template <typename Event>
  static std::vector<Event> Of(const std::vector<TransportEvent>& events) {
    std::vector<Event> of_kind;
    for (const TransportEvent& event : events) {
      if (auto* e = std::get_if<Event>(&event)) of_kind.push_back(*e);
    }
    return of_kind;
  }
  PeerId ToB() { return a_->Connect(b_->address()).value(); }

  std::unique_ptr<UcxTransport> a_ = Make(UcxMode::kAuto);
  std::unique_ptr<UcxTransport> b_ = Make(UcxMode::kAuto);
  std::vector<TransportEvent> at_a_, at_b_;
};

TEST_F(UcxTransportTest, MessagesOfEverySizeArrive) {
  for (size_t size : {size_t{0}, size_t{1}, size_t{10'000}, size_t{1'000'000},
                      kMaxMessageBytes}) {
    const std::string message(size, 'm');
    a_->SendMessage(ToB(), message);
    at_b_.clear();
    Until([&] { return !at_b_.empty(); });
    EXPECT_EQ(Of<MessageReceived>(at_b_).at(0).message, message);
  }
}

TEST_F(UcxTransportTest, BlocksMoveIntoTheReceivesOfTheirTags) {
  for (size_t size : {size_t{64}, kBytes}) {
    const std::vector<std::byte> from(size, std::byte{7});
    std::vector<std::byte> into(size);
    at_a_.clear();
    at_b_.clear();
    const TransferId receive = b_->PostReceive(5, into);
    const TransferId send = a_->PostSend(ToB(), 5, from);
    Until([&] { return !at_a_.empty() && !at_b_.empty(); });
    EXPECT_EQ(Of<TransferDone>(at_a_).at(0).id, send);
    EXPECT_EQ(Of<TransferDone>(at_b_).at(0).id, receive);
    EXPECT_TRUE(Of<TransferDone>(at_b_).at(0).status.ok());
    EXPECT_EQ(into, from);
  }
}

TEST_F(UcxTransportTest, ABlockThatNobodyWantsIsDroppedAndItsSendEnds) {
  const std::vector<std::byte> from(kBytes, std::byte{7});
  std::vector<std::byte> into(kBytes);
  const TransferId cancelled = b_->PostReceive(5, into);
  b_->PostReceive(6, std::span(into).first(kBytes - 1));
  b_->Cancel(cancelled);
  for (uint64_t tag : {5, 6, 7}) a_->PostSend(ToB(), tag, from);
  Until([&] { return at_a_.size() == 3; });
  EXPECT_EQ(Of<TransferDone>(at_b_).size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(Of<TransferDone>(at_b_).at(0).status));
  EXPECT_EQ(into, std::vector<std::byte>(kBytes));
}

TEST_F(UcxTransportTest, APeerThatGoesIsReportedAndEndsWhatIsOutstanding) {
  const PeerId to_b = ToB();
  a_->SendMessage(to_b, "hello");
  Until([&] { return !at_b_.empty(); });
  b_.reset();
  const std::vector<std::byte> from(kBytes);
  const TransferId send = a_->PostSend(to_b, 5, from);
  const absl::Time deadline = absl::Now() + kDeadline;
  while (Of<PeerFailed>(at_a_).empty() || Of<TransferDone>(at_a_).empty()) {
    ASSERT_LT(absl::Now(), deadline);
    a_->Poll(&at_a_);
  }
  EXPECT_EQ(Of<PeerFailed>(at_a_).at(0).peer, to_b);
  EXPECT_EQ(Of<TransferDone>(at_a_).at(0).id, send);
  // Its address leads nowhere, and that too is reported.
  const std::string gone = Make(UcxMode::kTcp)->address();
  at_a_.clear();
  const absl::StatusOr<PeerId> nobody = a_->Connect(gone);
  if (!nobody.ok()) return;
  a_->SendMessage(*nobody, "hello?");
  while (Of<PeerFailed>(at_a_).empty()) {
    ASSERT_LT(absl::Now(), deadline);
    a_->Poll(&at_a_);
  }
}

TEST_F(UcxTransportTest, ClosingByForceEndsSendsToAPeerThatDoesNotAnswer) {
  const PeerId to_b = ToB();
  const std::vector<std::byte> from(kBytes);
  const TransferId send = a_->PostSend(to_b, 5, from);
  for (int i = 0; i < 1000; ++i) a_->Poll(&at_a_);  // B never polls.
  EXPECT_TRUE(at_a_.empty());
  a_->ClosePeer(to_b);
  const absl::Time deadline = absl::Now() + kDeadline;
  while (at_a_.size() < 2) {
    ASSERT_LT(absl::Now(), deadline);
    a_->Poll(&at_a_);
  }
  EXPECT_EQ(Of<TransferDone>(at_a_).at(0).id, send);
  EXPECT_TRUE(absl::IsCancelled(Of<PeerFailed>(at_a_).at(0).status));
  EXPECT_NE(ToB(), to_b);
}

TEST_F(UcxTransportTest, WakeEndsAWaitEvenBeforeItBegins) {
  a_->Wake();
  const absl::Time start = absl::Now();
  a_->Wait(absl::Minutes(5));
  std::thread other([&] { a_->Wake(); });
  a_->Wait(absl::Minutes(5));
  other.join();
  EXPECT_LT(absl::Now() - start, absl::Minutes(4));
}

TEST_F(UcxTransportTest, AMessageEndsAWait) {
  std::atomic<bool> heard = false;
  std::thread other([&] {
    b_->SendMessage(b_->Connect(a_->address()).value(), "wake up");
    while (!heard) b_->Poll(&at_b_);
  });
  while (at_a_.empty()) {
    a_->Wait(absl::Minutes(5));
    a_->Poll(&at_a_);
  }
  heard = true;
  other.join();
}

TEST_F(UcxTransportTest, DamagedAddressesAndKeysAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(a_->Connect("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(a_->Connect("tcp://host").status()));
  std::string damaged = b_->address();
  damaged[damaged.size() / 2] ^= 1;
  EXPECT_TRUE(absl::IsInvalidArgument(a_->Connect(damaged).status()));

  std::byte* const region = b_->AllocateRegion(1 << 20).value();
  std::string key = b_->remote_key();
  const auto map = [&](std::string_view remote_key, uint64_t base, size_t bytes,
                       std::string_view host) {
    return a_->MapRemote(ToB(), {.host_id = host,
                                 .remote_key = remote_key,
                                 .base_address = base,
                                 .bytes = bytes});
  };
  const auto base = reinterpret_cast<uint64_t>(region);
  key.back() ^= 1;
  EXPECT_EQ(map(key, base, 1 << 20, a_->host_id()), nullptr);
  key.back() ^= 1;
  const std::byte* const mapped = map(key, base, 1 << 20, a_->host_id());
  ASSERT_NE(mapped, nullptr);
  region[100] = std::byte{42};
  EXPECT_EQ(mapped[100], std::byte{42});
  EXPECT_EQ(map(key, base + 64, 1 << 20, a_->host_id()), nullptr);
  EXPECT_EQ(map(key, base, (1 << 20) + 1, a_->host_id()), nullptr);
  // Where its blocks begin follows from its size.
  EXPECT_EQ(map(key, base, (1 << 20) - 1, a_->host_id()), nullptr);
}

TEST_F(UcxTransportTest, TheModeSaysInWhichWaysBlocksMove) {
  const std::string shm = "shm@" + a_->host_id();
  EXPECT_EQ(a_->ways(), (std::vector<std::string>{shm, "tcp"}));
  EXPECT_EQ(Make(UcxMode::kShm)->ways(), std::vector<std::string>{shm});
  EXPECT_EQ(Make(UcxMode::kTcp)->ways(), std::vector<std::string>{"tcp"});
}

TEST_F(UcxTransportTest, AnotherHostIsNotMapped) {
  std::byte* const region = b_->AllocateRegion(4096).value();
  EXPECT_EQ(
      a_->MapRemote(ToB(), {.host_id = "another",
                            .remote_key = b_->remote_key(),
                            .base_address = reinterpret_cast<uint64_t>(region),
                            .bytes = 4096}),
      nullptr);
}

TEST_F(UcxTransportTest, MorePeersThanTheLimitAreRefused) {
  a_ = Make(UcxMode::kTcp, /*max_peers=*/1);
  const PeerId to_b = ToB();
  EXPECT_EQ(ToB(), to_b);
  EXPECT_TRUE(absl::IsResourceExhausted(
      a_->Connect(Make(UcxMode::kTcp)->address()).status()));
}

// Two agents in two threads, both directions at once.
class UcxAgentsTest : public ::testing::TestWithParam<UcxMode> {};

INSTANTIATE_TEST_SUITE_P(Modes, UcxAgentsTest,
                         ::testing::Values(UcxMode::kAuto, UcxMode::kShm,
                                           UcxMode::kTcp),
                         [](const auto& i) {
                           return i.param == UcxMode::kAuto  ? "Auto"
                                  : i.param == UcxMode::kShm ? "Shm"
                                                             : "Tcp";
                         });

constexpr uint32_t kTransfers = 8;  // Of each direction.
constexpr uint32_t kBlocks = 12;    // Of one transfer.
constexpr uint32_t kPoolBlocks = 2 * kTransfers * kBlocks;

// Of each side, the first half of the pool is exported, the other imported
// into.
std::vector<BlockId> Blocks(uint32_t first) {
  std::vector<BlockId> ids;
  for (uint32_t i = 0; i < kBlocks; ++i) ids.push_back(BlockId(first + i));
  return ids;
}
std::vector<BlockId> Sources(uint32_t t) { return Blocks(t / 2 * kBlocks); }
std::vector<BlockId> Targets(uint32_t t) {
  return Blocks((kTransfers + t / 2) * kBlocks);
}

void StartTransfer(uint32_t t, KvTransferSide* from, KvTransferSide* to) {
  const auto source = Sources(t);
  for (BlockId block : source) from->Fill(block, block.value() + 1000 * t);
  const ExportId id(t);
  to->agent().StartImport(ImportId(t),
                          from->agent().StartExport(id, source, kBlocks * 64),
                          0, Targets(t));
  for (uint32_t n = 1; n <= kBlocks; ++n) from->agent().PublishReadable(id, n);
  from->agent().PublishTail(id, "tail " + std::to_string(t));
}

// Polls until both sides have `finished`, which counts this one too.
void PollUntilFinished(KvTransferSide* side, std::atomic<int>* finished) {
  const absl::Time deadline = absl::Now() + kDeadline;
  bool told = false;
  while (*finished < 2 && absl::Now() < deadline) {
    if (!side->agent().Poll()) side->agent().Wait(absl::Milliseconds(50));
    if (!told && side->exports().size() == kTransfers &&
        side->imports().size() == kTransfers) {
      told = true;
      ++*finished;
    }
  }
}

TEST_P(UcxAgentsTest, TransfersOfBothDirectionsEndWithEqualBytes) {
  const MonotonicClock clock;
  KvTransferSide sides[2] = {{Make(GetParam()), kPoolBlocks, 32'768, &clock},
                             {Make(GetParam()), kPoolBlocks, 32'768, &clock}};
  for (uint32_t t = 0; t < 2 * kTransfers; ++t) {
    StartTransfer(t, &sides[t % 2], &sides[1 - t % 2]);
  }
  std::atomic<int> finished = 0;
  std::vector<std::thread> threads;
  for (KvTransferSide& side : sides) {
    threads.emplace_back(PollUntilFinished, &side, &finished);
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(finished, 2);
  for (uint32_t t = 0; t < 2 * kTransfers; ++t) {
    const KvTransferSide& to = sides[1 - t % 2];
    const KvImportEnded& ended = to.imports().at(ImportId(t));
    EXPECT_TRUE(ended.status.ok()) << ended.status.ToString();
    EXPECT_EQ(ended.tail, "tail " + std::to_string(t));
    EXPECT_EQ(ended.one_sided, GetParam() != UcxMode::kTcp);
    const auto source = Sources(t);
    const auto target = Targets(t);
    for (uint32_t i = 0; i < kBlocks; ++i) {
      EXPECT_TRUE(to.Holds(target[i], source[i].value() + 1000 * t));
    }
    EXPECT_TRUE(sides[t % 2].exports().at(ExportId(t)).status.ok());
  }
}

}  // namespace
}  // namespace baton
