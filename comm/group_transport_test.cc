// Groups of processes that are objects of this one.
#include "comm/group_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/field_error.h"
#include "base/logging.h"
#include "comm/slot_table.h"
#include "comm/testing/expert_exchange.h"

namespace baton {
namespace {

using Ranks = std::vector<uint32_t>;

constexpr uint32_t kProcesses = 3;
constexpr uint32_t kLocalRanks = 2;
constexpr uint32_t kRanks = kProcesses * kLocalRanks;
constexpr int kExperts = 16;

ExpertGroupShape Shape() { return SmallGroupShape(kRanks, 3); }

// 16 experts in 18 slots: two have a copy.
SlotTable Table() {
  std::vector<uint32_t> experts;
  for (uint32_t s = 0; s < kRanks * 3; ++s) experts.push_back(s % kExperts);
  return SlotTable(kExperts, experts);
}

// The processes of one epoch, before they connect.
class Transports {
 public:
  explicit Transports(UcxMode mode) : Transports({mode, mode, mode}) {}
  explicit Transports(const std::vector<UcxMode>& modes,
                      absl::Duration deadline_of_first = absl::Minutes(1)) {
    for (uint32_t p = 0; p < kProcesses; ++p) {
      auto transport = GroupTransport::Create(
          {.shape = Shape(),
           .local_ranks = kLocalRanks,
           .process = p,
           .mode = modes[p],
           .network_devices = "lo",
           .deadline = p == 0 ? deadline_of_first : absl::Minutes(1)});
      CHECK_OK(transport.status());
      group_.members.push_back({.rank_offset = p * kLocalRanks,
                                .local_ranks = kLocalRanks,
                                .transport_address = (*transport)->address(),
                                .host_id = "a"});
      all_.push_back(*std::move(transport));
    }
  }

  GroupTransport& operator[](uint32_t p) { return *all_[p]; }
  GroupMember& member(uint32_t p) { return group_.members[p]; }
  absl::Status Connect(uint32_t p) { return all_[p]->Connect(group_); }
  void ConnectAll() {
    for (uint32_t p = 0; p < kProcesses; ++p) CHECK_OK(Connect(p));
  }

 private:
  GroupEpoch group_ = {.epoch = 7};
  std::vector<std::unique_ptr<GroupTransport>> all_;
};

// Calls body(i) on a thread each.
void RunAll(uint32_t count, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < count; ++i) {
    threads.emplace_back([&body, i] { body(i); });
  }
  for (std::thread& thread : threads) thread.join();
}

// One layer of one rank.
bool ExchangesOnce(GroupTransport* transport, uint32_t rank) {
  std::mt19937 random(rank);
  return ExchangesRight(Shape().experts,
                        RandomTokens(Shape().experts, 5, &random), Table(),
                        transport->MakeDispatch(rank).get());
}

std::vector<ChannelMessage> AwaitMessages(size_t count, GroupChannel* channel) {
  std::vector<ChannelMessage> all, received;
  while (all.size() < count && channel->status().ok()) {
    channel->Wait(absl::InfiniteDuration());
    channel->Receive(&received);
    all.insert(all.end(), received.begin(), received.end());
  }
  return all;
}

// Each rank exchanges rows, and each process says something to all others.
void ExpectTraffic(Transports* transports) {
  RunAll(kRanks, [&](uint32_t rank) {
    EXPECT_TRUE(ExchangesOnce(&(*transports)[rank / kLocalRanks], rank));
  });
  std::latch all_received(kProcesses);
  RunAll(kProcesses, [&](uint32_t p) {
    GroupChannel& channel = (*transports)[p].channel();
    for (uint32_t to = 0; to < kProcesses; ++to) {
      if (to != p) channel.Send(to, std::to_string(p) + std::to_string(to));
    }
    for (const ChannelMessage& m : AwaitMessages(kProcesses - 1, &channel)) {
      EXPECT_EQ(m.bytes, std::to_string(m.from) + std::to_string(p));
    }
    all_received.count_down();
    // What waits here goes out in our calls.
    while (!all_received.try_wait()) channel.Wait(absl::Milliseconds(1));
    EXPECT_TRUE((*transports)[p].status().ok()) << (*transports)[p].status();
    EXPECT_EQ((*transports)[p].lost_ranks(), Ranks());
  });
}

// What a group of one host, or of several, goes by.
struct Case {
  UcxMode mode;
  bool one_host;
  const char* way;
};

class GroupTransportTest : public testing::TestWithParam<Case> {
 protected:
  GroupTransportTest() {
    if (!GetParam().one_host) transports_.member(1).host_id = "b";
    transports_.ConnectAll();
  }

  Transports transports_{GetParam().mode};
};

INSTANTIATE_TEST_SUITE_P(Ways, GroupTransportTest,
                         testing::Values(Case{UcxMode::kShm, true, "shm"},
                                         Case{UcxMode::kAuto, true, "shm"},
                                         Case{UcxMode::kTcp, true, "ucx"},
                                         Case{UcxMode::kAuto, false, "ucx"},
                                         Case{UcxMode::kTcp, false, "ucx"}));

TEST_P(GroupTransportTest, RowsAndMessagesGoBetweenAll) {
  for (uint32_t p = 0; p < kProcesses; ++p) {
    EXPECT_STREQ(transports_[p].way(), GetParam().way);
  }
  ExpectTraffic(&transports_);
}

TEST_P(GroupTransportTest, AnEndOfOneEndsTheWaitsOfAll) {
  ExpectTraffic(&transports_);  // All are connected.
  std::latch others_run(4 + 2);
  std::vector<std::thread> threads;
  for (uint32_t rank = kLocalRanks; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      GroupTransport& transport = transports_[rank / kLocalRanks];
      others_run.count_down();
      EXPECT_FALSE(ExchangesOnce(&transport, rank));
      EXPECT_FALSE(transport.status().ok());
    });
  }
  for (uint32_t p = 1; p < kProcesses; ++p) {
    threads.emplace_back([&, p] {
      others_run.count_down();
      EXPECT_TRUE(AwaitMessages(1, &transports_[p].channel()).empty());
      EXPECT_EQ(transports_[p].channel().status().code(),
                absl::StatusCode::kUnavailable);
    });
  }
  others_run.wait();
  transports_[0].End();
  // Its owner's next call.
  transports_[0].channel().Wait(absl::InfiniteDuration());
  for (std::thread& thread : threads) thread.join();
  for (uint32_t p = 0; p < kProcesses; ++p) {
    EXPECT_EQ(transports_[p].status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(transports_[0].lost_ranks(), Ranks());
}

// `missing` exchange nothing; process 0 alone has a short deadline.
void ExpectDeadlineNames(const Ranks& missing, Transports* transports) {
  RunAll(kRanks, [&](uint32_t rank) {
    if (std::ranges::count(missing, rank) > 0) return;
    EXPECT_FALSE(ExchangesOnce(&(*transports)[rank / kLocalRanks], rank));
  });
  EXPECT_EQ((*transports)[0].status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ((*transports)[0].lost_ranks(), missing);
}

TEST(GroupTransportDeadlineTest, ItNamesTheRanksThatAreNotThere) {
  for (const Ranks& missing : {Ranks{2, 3}, Ranks{3}, Ranks{1, 4, 5}}) {
    const UcxMode shm = UcxMode::kShm;
    Transports transports({shm, shm, shm}, absl::Milliseconds(100));
    transports.ConnectAll();
    ExpectDeadlineNames(missing, &transports);
    // All see the same memory.
    EXPECT_EQ(transports[2].lost_ranks(), missing);
  }
}

// Without shared memory another process is there or it is not.
TEST(GroupTransportDeadlineTest, BetweenHostsItNamesAProcess) {
  for (const Ranks& missing : {Ranks{2, 3}, Ranks{1}}) {
    const UcxMode tcp = UcxMode::kTcp;
    Transports transports({tcp, tcp, tcp}, absl::Seconds(3));
    transports.ConnectAll();
    ExpectTraffic(&transports);  // All are connected.
    ExpectDeadlineNames(missing, &transports);
  }
}

TEST(GroupTransportConnectTest, SharedMemoryIsRefusedBetweenHosts) {
  Transports transports(UcxMode::kShm);
  transports.member(2).host_id = "b";
  for (uint32_t p = 0; p < kProcesses; ++p) {
    const absl::Status status = transports.Connect(p);
    EXPECT_EQ(ErrorField(status), "transport") << status;
  }
}

TEST(GroupTransportConnectTest, SharedMemoryIsRefusedIfTheLeaderHasNone) {
  Transports transports({UcxMode::kTcp, UcxMode::kShm, UcxMode::kTcp});
  EXPECT_EQ(ErrorField(transports.Connect(1)), "transport");
}

void ExpectNamesRanks(const absl::Status& status, const std::string& ranks) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("ranks " + ranks + " gave"),
            std::string::npos)
      << status;
}

TEST(GroupTransportConnectTest, AnAddressThatIsNoneNamesItsRanks) {
  for (const std::string& garbage :
       {std::string(), std::string("x"), std::string(100, '\xff')}) {
    for (const UcxMode mode : {UcxMode::kShm, UcxMode::kTcp}) {
      Transports transports(mode);
      transports.member(0).transport_address = garbage;
      ExpectNamesRanks(transports.Connect(1), "0..1");
    }
    Transports transports(UcxMode::kTcp);
    transports.member(2).transport_address = garbage;
    ExpectNamesRanks(transports.Connect(1), "4..5");
  }
}

TEST(GroupTransportConnectTest, AnAddressWithSomethingBehindItIsNone) {
  Transports transports(UcxMode::kAuto);
  transports.member(0).transport_address += "x";
  ExpectNamesRanks(transports.Connect(1), "0..1");
}

TEST(GroupTransportConnectTest, MemoryOfAProcessThatIsGoneIsAnError) {
  Transports transports(UcxMode::kShm);
  Transports others(UcxMode::kShm);
  transports.member(0).transport_address = others.member(0).transport_address;
  others = Transports(UcxMode::kShm);
  EXPECT_FALSE(transports.Connect(1).ok());
}

TEST(GroupTransportLocalTest, OneProcessIsAGroupByItself) {
  const ExpertGroupShape shape = SmallGroupShape(2, 8);
  for (const UcxMode mode : {UcxMode::kAuto, UcxMode::kShm, UcxMode::kTcp}) {
    auto transport = GroupTransport::Create(
        {.shape = shape, .local_ranks = 2, .mode = mode});
    ASSERT_TRUE(transport.ok()) << transport.status();
    ASSERT_TRUE((*transport)->Connect({.members = {{.local_ranks = 2}}}).ok());
    EXPECT_STREQ((*transport)->way(), "local");
    RunAll(2, [&](uint32_t rank) {
      EXPECT_TRUE(
          RunExchangeRank(shape, 5, (*transport)->MakeDispatch(rank).get()));
    });
    (*transport)->channel().Wake();
    (*transport)->channel().Wait(absl::InfiniteDuration());
    EXPECT_TRUE((*transport)->status().ok());
    (*transport)->End();
    (*transport)->channel().Wait(absl::InfiniteDuration());
    EXPECT_EQ((*transport)->status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ((*transport)->lost_ranks(), Ranks());
  }
}

}  // namespace
}  // namespace baton
