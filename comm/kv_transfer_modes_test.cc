// Agents whose transports differ in what they can do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "comm/kv_pool.h"
#include "comm/kv_transfer_agent.h"
#include "comm/loopback_transport.h"
#include "comm/testing/kv_transfer_side.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

constexpr ExportId kExport(11);
constexpr ImportId kImport(22);

TEST(KvTransferModesTest, ABlockThatIsStuckEndsThePushThoughBothSidesLive) {
  SimulatedClock clock;
  LoopbackNetwork network;
  network.set_hook([](auto, auto, std::string_view message) {
    return LoopbackFate{.copies = message.empty() ? 0u : 1u};
  });
  KvTransferSide p(network.CreateEndpoint("p", {.maps_regions = false}), 4, 64,
                   &clock);
  KvTransferSide d(network.CreateEndpoint("d", {}), 4, 64, &clock);
  d.agent().StartImport(kImport,
                        p.agent().StartExport(kExport, {BlockId(0)}, 64), 0,
                        {BlockId(1)});
  p.agent().PublishReadable(kExport, 1);
  for (int i = 0; i < 40; ++i) {
    p.agent().Poll();
    d.agent().Poll();
    clock.Advance(absl::Seconds(1));
  }
  ASSERT_TRUE(d.imports().contains(kImport));
  EXPECT_TRUE(absl::IsUnavailable(d.imports().at(kImport).status));
  ASSERT_TRUE(p.exports().contains(kExport));
  EXPECT_TRUE(absl::IsCancelled(p.exports().at(kExport).status));
}

TEST(KvTransferModesTest, APullThatProgressesMayTakeLongerThanItsTimeout) {
  SimulatedClock clock;
  LoopbackNetwork network;
  constexpr uint32_t kBlocks = 16;
  KvTransferSide p(network.CreateEndpoint("p", {}), kBlocks, 64, &clock);
  KvTransferAgentOptions options;
  options.max_blocks_in_flight = 1;
  KvTransferSide d(network.CreateEndpoint("d", {}), kBlocks, 64, &clock,
                   options);
  std::vector<BlockId> blocks;
  for (uint32_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(BlockId(i));
    p.Fill(BlockId(i), i);
  }
  d.agent().StartImport(kImport, p.agent().StartExport(kExport, blocks, 64), 0,
                        blocks);
  p.agent().PublishReadable(kExport, kBlocks);
  p.agent().PublishTail(kExport, "tail");
  const absl::Time start = clock.Now();
  for (int i = 0; i < 40 && !d.imports().contains(kImport); ++i) {
    p.agent().Poll();
    d.agent().Poll();
    clock.Advance(absl::Seconds(10));
  }
  EXPECT_GT(clock.Now() - start, absl::Seconds(100));
  ASSERT_TRUE(d.imports().contains(kImport));
  EXPECT_TRUE(d.imports().at(kImport).status.ok())
      << d.imports().at(kImport).status.ToString();
  EXPECT_TRUE(d.imports().at(kImport).one_sided);
  for (BlockId block : blocks) EXPECT_TRUE(d.Holds(block, block.value()));
}

TEST(KvTransferModesTest, WithoutMappingAndWithoutSendsNothingMoves) {
  SimulatedClock clock;
  LoopbackNetwork network;
  KvTransferSide p(network.CreateEndpoint("p", {.maps_regions = false}), 4, 64,
                   &clock);
  KvTransferSide d(network.CreateEndpoint("d", {.sends_blocks = false}), 4, 64,
                   &clock);
  KvHandle handle = p.agent().StartExport(kExport, {BlockId(0)}, 64);
  d.agent().StartImport(ImportId(1), handle, 0, {BlockId(1)});
  handle.host_id = "another host";
  d.agent().StartImport(ImportId(2), handle, 0, {BlockId(1)});
  d.agent().Poll();
  ASSERT_EQ(d.imports().size(), 2u);
  EXPECT_TRUE(absl::IsUnavailable(d.imports().at(ImportId(1)).status));
  EXPECT_TRUE(absl::IsFailedPrecondition(d.imports().at(ImportId(2)).status));
}

TEST(KvTransferModesTest, ABlockThatIsReusedUnderTheReaderEndsThePull) {
  SimulatedClock clock;
  LoopbackNetwork network;
  KvTransferSide p(network.CreateEndpoint("p", {}), 4, 64, &clock);
  KvTransferSide d(network.CreateEndpoint("d", {}), 4, 64, &clock);
  const auto poll = [&] {
    for (int i = 0; i < 20; ++i) {
      p.agent().Poll();
      d.agent().Poll();
    }
  };
  p.Fill(BlockId(0), 100);
  d.agent().StartImport(kImport,
                        p.agent().StartExport(kExport, {BlockId(0)}, 64), 0,
                        {BlockId(1)});
  poll();
  p.Fill(BlockId(0), 999);  // What its owner must not do, but a bug could.
  p.agent().PublishReadable(kExport, 1);
  p.agent().PublishTail(kExport, "tail");
  poll();
  ASSERT_TRUE(d.imports().contains(kImport));
  EXPECT_TRUE(absl::IsAborted(d.imports().at(kImport).status));
  EXPECT_EQ(d.imports().at(kImport).tail, "");
  EXPECT_FALSE(d.Holds(BlockId(1), 999));
  ASSERT_TRUE(p.exports().contains(kExport));
  EXPECT_TRUE(absl::IsCancelled(p.exports().at(kExport).status));
}

// Else a simulation of them would not repeat itself.
TEST(KvTransferModesTest, WhatEndsAtOneTimeEndsInTheOrderOfItsIds) {
  constexpr uint32_t kExports = 32;
  SimulatedClock clock;
  LoopbackNetwork network;
  const auto transport = network.CreateEndpoint("p", {});
  const KvPool pool(
      transport->AllocateRegion(KvPool::RegionBytes(kExports, 64)).value(),
      kExports, 64);
  std::vector<uint64_t> ended;
  KvTransferAgent agent(
      {}, transport.get(), &pool, &clock,
      [&ended](const KvTransferEvent& event) {
        ended.push_back(std::get<KvExportEnded>(event).id.value());
      });
  for (uint32_t i = 0; i < kExports; ++i) {
    agent.StartExport(ExportId(kExports - i), {BlockId(i)}, 64);
  }
  agent.Poll();
  clock.Advance(KvTransferAgentOptions().lease);
  agent.Poll();
  EXPECT_EQ(ended.size(), kExports);
  EXPECT_TRUE(std::is_sorted(ended.begin(), ended.end()));
}

}  // namespace
}  // namespace baton
