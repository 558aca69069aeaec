#include "comm/kv_transfer_port.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "comm/loopback_transport.h"
#include "gtest/gtest.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

constexpr size_t kBlockBytes = 64;
constexpr uint32_t kBlocksOfARank = 4;
constexpr uint32_t kRanks = 3;

// A process of three ranks: one pool, one agent, a slice and a port for each.
class Process {
 public:
  Process(LoopbackNetwork* network, std::string address, const Clock* clock)
      : transport_(network->CreateEndpoint(std::move(address), {})),
        pool_([this] {
          constexpr uint32_t kBlocks = kRanks * kBlocksOfARank;
          auto region = transport_->AllocateRegion(
              KvPool::RegionBytes(kBlocks, kBlockBytes));
          return KvPool(*region, kBlocks, kBlockBytes);
        }()),
        agent_({.fingerprint = "same"}, transport_.get(), &pool_, clock,
               [this](KvTransferEvent event) {
                 rank_ = KvTransferPort::LocalRankOf(event);
                 event_ = KvTransferPort::ToRank(std::move(event));
               }) {}

  KvPool Slice(uint32_t rank) {
    return pool_.Slice(BlockId(rank * kBlocksOfARank), kBlocksOfARank);
  }
  KvTransferPort Port(uint32_t rank) {
    return {&agent_, rank, BlockId(rank * kBlocksOfARank)};
  }
  bool Poll() { return agent_.Poll(); }
  uint32_t rank() const { return rank_; }
  const std::optional<KvTransferEvent>& event() const { return event_; }

 private:
  std::unique_ptr<Transport> transport_;
  KvPool pool_;
  KvTransferAgent agent_;
  uint32_t rank_ = 0;
  std::optional<KvTransferEvent> event_;
};

TEST(KvTransferPortTest, RanksOfOneProcessHaveIdsOfTheirOwn) {
  SimulatedClock clock;
  LoopbackNetwork network;
  Process from(&network, "from", &clock);
  Process to(&network, "to", &clock);
  KvPool source = from.Slice(2);
  KvPool target = to.Slice(1);
  source.BeginNewContent(BlockId(3));
  std::memset(source.block(BlockId(3)), 7, kBlockBytes);

  KvHandle handle =
      from.Port(2).StartExport(ExportId(5), {BlockId(3)}, /*num_tokens=*/64);
  EXPECT_EQ(handle.blocks[0].block, BlockId(2 * kBlocksOfARank + 3));
  EXPECT_EQ(handle.blocks[0].generation, source.generation(BlockId(3)));
  from.Port(2).PublishReadable(ExportId(5), 1);
  from.Port(2).PublishTail(ExportId(5), "tail");
  to.Port(1).StartImport(ImportId(5), std::move(handle), 0, {BlockId(0)});
  bool moves = true;
  while (moves) {
    moves = from.Poll();
    moves |= to.Poll();
  }
  ASSERT_TRUE(to.event().has_value());
  const auto& imported = std::get<KvImportEnded>(*to.event());
  EXPECT_TRUE(imported.status.ok()) << imported.status;
  EXPECT_EQ(imported.id, ImportId(5));
  EXPECT_EQ(imported.tail, "tail");
  EXPECT_EQ(to.rank(), 1u);
  EXPECT_EQ(std::memcmp(target.block(BlockId(0)), source.block(BlockId(3)),
                        kBlockBytes),
            0);
  ASSERT_TRUE(from.event().has_value());
  EXPECT_EQ(std::get<KvExportEnded>(*from.event()).id, ExportId(5));
  EXPECT_EQ(from.rank(), 2u);
}

TEST(KvTransferPortTest, WhatIsEndedEarlyIsTheRanksOwn) {
  SimulatedClock clock;
  LoopbackNetwork network;
  Process process(&network, "alone", &clock);
  process.Port(1).StartExport(ExportId(9), {BlockId(0)}, 64);
  process.Port(1).EndExport(ExportId(9));
  while (process.Poll()) {
  }
  ASSERT_TRUE(process.event().has_value());
  EXPECT_EQ(std::get<KvExportEnded>(*process.event()).id, ExportId(9));
  EXPECT_EQ(process.rank(), 1u);
}

TEST(KvTransferPortTest, ADefaultOneIsNoPort) {
  EXPECT_FALSE(KvTransferPort());
}

}  // namespace
}  // namespace baton
