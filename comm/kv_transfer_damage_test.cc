// KV blocks that are damaged on their way, both ways that blocks move.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "comm/kv_transfer_agent.h"
#include "comm/loopback_transport.h"
#include "comm/testing/kv_transfer_side.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

constexpr uint32_t kBlocks = 4;
constexpr size_t kBlockBytes = 192;
constexpr ExportId kExport(11);
constexpr ImportId kImport(22);

// What happens to two of the blocks.
using Damage = std::function<void(std::byte* one, std::byte* other)>;

class KvTransferDamageTest : public ::testing::TestWithParam<bool> {
 protected:
  static bool maps() { return GetParam(); }

  // The end of an import whose blocks are damaged after their checksums were
  // computed: where they lie, or, if they are sent, where they arrived.
  KvImportEnded ImportWith(const Damage& damage, bool checksums = true) {
    LoopbackNetwork network;
    // Blocks, which are no messages, arrive before anything is said of them.
    network.set_hook([](std::string_view from, auto, std::string_view message) {
      const bool late = !maps() && from == "p" && !message.empty();
      return LoopbackFate{.delay_polls = late ? 10u : 0u};
    });
    KvTransferAgentOptions options;
    options.checksums = checksums;
    const LoopbackEndpointOptions endpoint{.maps_regions = maps()};
    KvTransferSide p(network.CreateEndpoint("p", endpoint), kBlocks,
                     kBlockBytes, &clock_);
    KvTransferSide d(network.CreateEndpoint("d", endpoint), kBlocks,
                     kBlockBytes, &clock_, options);
    std::vector<BlockId> blocks;
    for (uint32_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(BlockId(i));
      p.Fill(BlockId(i), 100 + i);
    }
    d.agent().StartImport(kImport, p.agent().StartExport(kExport, blocks, 0), 0,
                          blocks);
    p.agent().PublishReadable(kExport, kBlocks);
    p.agent().PublishTail(kExport, "tail");
    d.agent().Poll();
    p.agent().Poll();
    if (!maps()) {
      for (int i = 0; i < 3; ++i) d.agent().Poll();
      EXPECT_TRUE(d.Holds(BlockId(1), 101) && d.Holds(BlockId(2), 102));
    }
    EXPECT_FALSE(d.imports().contains(kImport));
    KvPool& pool = maps() ? p.pool() : d.pool();
    damage(pool.block(BlockId(1)), pool.block(BlockId(2)));
    for (int i = 0; i < 40; ++i) {
      d.agent().Poll();
      p.agent().Poll();
    }
    EXPECT_TRUE(d.imports().contains(kImport) && p.exports().contains(kExport));
    const KvImportEnded ended = d.imports().at(kImport);
    // Both sides agree, and one damaged block is counted once.
    EXPECT_EQ(p.exports().at(kExport).status.ok(), ended.status.ok());
    EXPECT_EQ(d.agent().counters().damaged_blocks, ended.status.ok() ? 0u : 1u);
    return ended;
  }

  void ExpectCaught(const Damage& damage) {
    const KvImportEnded ended = ImportWith(damage);
    EXPECT_TRUE(absl::IsAborted(ended.status)) << ended.status.ToString();
    EXPECT_EQ(ended.tail, "");
  }

  SimulatedClock clock_;
};

INSTANTIATE_TEST_SUITE_P(Modes, KvTransferDamageTest, ::testing::Bool(),
                         [](const auto& i) {
                           return i.param ? "Pull" : "Push";
                         });

TEST_P(KvTransferDamageTest, WhatIsNotDamagedArrives) {
  const KvImportEnded ended = ImportWith([](auto, auto) {});
  EXPECT_TRUE(ended.status.ok()) << ended.status.ToString();
  EXPECT_EQ(ended.tail, "tail");
}

TEST_P(KvTransferDamageTest, AFlippedBitIsCaught) {
  for (size_t bit = 0; bit < 8 * kBlockBytes; ++bit) {
    ExpectCaught([&](std::byte* block, auto) {
      block[bit / 8] ^= std::byte{1} << (bit % 8);
    });
  }
}

TEST_P(KvTransferDamageTest, ABlockCutShortIsCaught) {
  for (size_t kept = 0; kept < kBlockBytes; kept += 8) {
    ExpectCaught([&](std::byte* block, auto) {
      std::memset(block + kept, 0, kBlockBytes - kept);
    });
  }
}

TEST_P(KvTransferDamageTest, ASwappedBlockIsCaught) {
  ExpectCaught([](std::byte* one, std::byte* other) {
    std::swap_ranges(one, one + kBlockBytes, other);
  });
}

TEST_P(KvTransferDamageTest, ABlockInTwoPlacesIsCaught) {
  ExpectCaught([](std::byte* one, std::byte* other) {
    std::memcpy(other, one, kBlockBytes);
  });
}

TEST_P(KvTransferDamageTest, ManyRandomChangesAreCaught) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    ExpectCaught([&](std::byte* one, std::byte* other) {
      for (uint64_t n = 1 + random() % 20; n > 0; --n) {
        std::byte* const block = random() % 2 == 0 ? one : other;
        const auto change = static_cast<std::byte>(random() | 1);
        block[random() % kBlockBytes] ^= change;
      }
    });
  }
}

TEST_P(KvTransferDamageTest, WithoutChecksumsNobodyNotices) {
  const KvImportEnded ended = ImportWith(
      [](std::byte* block, auto) { block[0] ^= std::byte{1}; }, false);
  EXPECT_TRUE(ended.status.ok()) << ended.status.ToString();
}

}  // namespace
}  // namespace baton
