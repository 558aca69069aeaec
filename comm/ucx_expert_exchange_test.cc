#include "comm/ucx_expert_exchange.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <latch>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/logging.h"
#include "comm/slot_table.h"
#include "comm/testing/expert_exchange.h"

namespace baton {
namespace {

using Ranks = std::vector<uint32_t>;
using Exchanges = std::vector<std::unique_ptr<UcxExpertExchange>>;

// The parts of a group, all in this process, before Connect().
Exchanges MakeParts(const ExpertGroupShape& shape,
                    const std::vector<RankRange>& processes,
                    absl::Duration deadline) {
  Exchanges parts;
  for (size_t i = 0; i < processes.size(); ++i) {
    auto part = UcxExpertExchange::Create({.shape = shape,
                                           .deadline = deadline,
                                           .processes = processes,
                                           .process = static_cast<int>(i)});
    CHECK_OK(part.status());
    parts.push_back(*std::move(part));
  }
  return parts;
}

std::vector<std::string> AddressesOf(const Exchanges& parts) {
  std::vector<std::string> addresses;
  for (const auto& part : parts) addresses.push_back(part->address());
  return addresses;
}

Exchanges MakeGroup(const ExpertGroupShape& shape,
                    const std::vector<RankRange>& processes,
                    absl::Duration deadline = absl::Minutes(1)) {
  Exchanges parts = MakeParts(shape, processes, deadline);
  for (const auto& part : parts) {
    CHECK_OK(part->Connect(/*epoch=*/7, AddressesOf(parts)));
  }
  return parts;
}

// Calls body(exchange, rank) for every rank on a thread of its own.
void RunRanks(const Exchanges& parts, const std::vector<RankRange>& processes,
              const auto& body) {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (int rank = processes[i].first; rank < processes[i].end; ++rank) {
      threads.emplace_back([&, i, rank] { body(parts[i].get(), rank); });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

void ExpectRight(const ExpertGroupShape& shape,
                 const std::vector<RankRange>& processes) {
  const Exchanges parts = MakeGroup(shape, processes);
  RunRanks(parts, processes, [&](UcxExpertExchange* exchange, int rank) {
    EXPECT_TRUE(RunExchangeRank(shape, 20, exchange->MakeDispatch(rank).get()))
        << rank << " " << exchange->status();
  });
}

TEST(UcxExpertExchangeTest, EveryOutputComesBackToItsTokenAndChoice) {
  ExpectRight(SmallGroupShape(2, 8), {{0, 1}, {1, 2}});
  ExpectRight(SmallGroupShape(4, 5), {{0, 1}, {1, 4}});
  ExpectRight(SmallGroupShape(8, 3), {{0, 2}, {2, 4}, {4, 6}, {6, 8}});
  ExpectRight(SmallGroupShape(16, 1), {{0, 9}, {9, 10}, {10, 16}});
}

TEST(UcxExpertExchangeTest, LongRowsGoInParts) {
  ExpertGroupShape shape = SmallGroupShape(2, 8);
  shape.experts.hidden_size = 200'000;  // 9.6 MB for 12 tokens.
  const std::vector<RankRange> processes = {{0, 1}, {1, 2}};
  const Exchanges parts = MakeGroup(shape, processes);
  RunRanks(parts, processes, [&](UcxExpertExchange* exchange, int rank) {
    const auto dispatch = exchange->MakeDispatch(rank);
    std::mt19937 random(rank + 1);
    EXPECT_TRUE(ExchangesRight(shape.experts,
                               RandomTokens(shape.experts, 12, &random),
                               SlotTable::Identity(16), dispatch.get()));
  });
}

TEST(UcxExpertExchangeTest, AnEndInOneProcessEndsTheOthers) {
  const ExpertGroupShape shape = SmallGroupShape(4, 4);
  const std::vector<RankRange> processes = {{0, 1}, {1, 3}, {3, 4}};
  const Exchanges parts = MakeGroup(shape, processes);
  std::latch all_have_rows(4);
  RunRanks(parts, processes, [&](UcxExpertExchange* exchange, int rank) {
    const auto dispatch = exchange->MakeDispatch(rank);
    std::mt19937 random(rank);
    Dispatch(shape.experts, RandomTokens(shape.experts, 12, &random),
             SlotTable::Identity(16), dispatch.get());
    EXPECT_TRUE(dispatch->status().ok());
    all_have_rows.arrive_and_wait();
    if (rank == 0) {
      exchange->End();
    } else {
      std::vector<float> routed(12 * 4 * 5);
      dispatch->Combine(Dense(routed.data(), 12 * 4, 5));
    }
    EXPECT_EQ(dispatch->status().code(), absl::StatusCode::kUnavailable);
  });
  EXPECT_NE(std::string(parts[1]->status().message()).find("are lost"),
            std::string::npos)
      << parts[1]->status();
  EXPECT_EQ(parts[0]->lost_ranks(), Ranks());
  EXPECT_FALSE(parts[1]->lost_ranks().empty());
}

TEST(UcxExpertExchangeTest, ASilentProcessEndsTheOthersByTheDeadline) {
  const ExpertGroupShape shape = SmallGroupShape(2, 8);
  const Exchanges parts =
      MakeGroup(shape, {{0, 1}, {1, 2}}, absl::Milliseconds(200));
  const auto dispatch = parts[0]->MakeDispatch(0);
  Dispatch(shape.experts, {}, SlotTable::Identity(16), dispatch.get());
  EXPECT_EQ(parts[0]->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(std::string(parts[0]->status().message()).find("another process"),
            std::string::npos);
  EXPECT_EQ(parts[0]->lost_ranks(), Ranks{1});
}

TEST(UcxExpertExchangeTest, ADeadlineNamesEveryProcessThatIsSilent) {
  const ExpertGroupShape shape = SmallGroupShape(4, 4);
  const std::vector<RankRange> processes = {{0, 1}, {1, 3}, {3, 4}};
  const Exchanges parts = MakeGroup(shape, processes, absl::Milliseconds(200));
  EXPECT_EQ(parts[0]->lost_ranks(), Ranks());
  const auto dispatch = parts[0]->MakeDispatch(0);
  Dispatch(shape.experts, {}, SlotTable::Identity(16), dispatch.get());
  EXPECT_EQ(parts[0]->lost_ranks(), (Ranks{1, 2, 3}));
}

TEST(UcxExpertExchangeTest, ALocalRankThatIsMissingIsNamedAndNobodyElse) {
  const ExpertGroupShape shape = SmallGroupShape(4, 4);
  const Exchanges parts =
      MakeGroup(shape, {{0, 1}, {1, 4}}, absl::Milliseconds(200));
  std::thread other([&] {
    const auto dispatch = parts[1]->MakeDispatch(3);
    Dispatch(shape.experts, {}, SlotTable::Identity(16), dispatch.get());
  });
  const auto dispatch = parts[1]->MakeDispatch(1);
  Dispatch(shape.experts, {}, SlotTable::Identity(16), dispatch.get());
  other.join();
  EXPECT_EQ(parts[1]->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(parts[1]->lost_ranks(), Ranks{2});
}

TEST(UcxExpertExchangeTest, AProcessThatIsGoneIsNamed) {
  const ExpertGroupShape shape = SmallGroupShape(4, 4);
  const std::vector<RankRange> processes = {{0, 1}, {1, 3}, {3, 4}};
  Exchanges parts = MakeGroup(shape, processes);
  RunRanks(parts, processes, [&](UcxExpertExchange* exchange, int rank) {
    const auto dispatch = exchange->MakeDispatch(rank);
    EXPECT_TRUE(ExchangesRight(shape.experts, {}, SlotTable::Identity(16),
                               dispatch.get()));
  });
  parts[1].reset();
  bool is_named = false;
  for (const size_t left : {0, 2}) {
    const int rank = processes[left].first;
    const auto dispatch = parts[left]->MakeDispatch(rank);
    Dispatch(shape.experts, {}, SlotTable::Identity(16), dispatch.get());
    EXPECT_EQ(parts[left]->status().code(), absl::StatusCode::kUnavailable);
    // The other one may see the end of the first that noticed.
    is_named |= parts[left]->lost_ranks() == Ranks{1, 2};
  }
  EXPECT_TRUE(is_named);
}

TEST(UcxExpertExchangeTest, MessagesOfAnotherEpochAreDropped) {
  const ExpertGroupShape shape = SmallGroupShape(2, 8);
  const std::vector<RankRange> processes = {{0, 1}, {1, 2}};
  const Exchanges parts = MakeParts(shape, processes, absl::Milliseconds(300));
  CHECK_OK(parts[0]->Connect(/*epoch=*/7, AddressesOf(parts)));
  CHECK_OK(parts[1]->Connect(/*epoch=*/8, AddressesOf(parts)));
  RunRanks(parts, processes, [&](UcxExpertExchange* exchange, int rank) {
    const auto dispatch = exchange->MakeDispatch(rank);
    EXPECT_EQ(
        Dispatch(shape.experts, {}, SlotTable::Identity(16), dispatch.get())
            .inputs.rows,
        0);
    EXPECT_FALSE(exchange->status().ok());
  });
}

}  // namespace
}  // namespace baton
