#include "comm/kv_transfer_agent.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "comm/kv_transfer_message.h"
#include "comm/loopback_transport.h"
#include "comm/testing/kv_transfer_side.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

constexpr uint32_t kPoolBlocks = 64;
constexpr size_t kBlockBytes = 192;
constexpr ExportId kExport(11);
constexpr ImportId kImport(22);

// Both ways that blocks move.
class KvTransferAgentTest : public ::testing::TestWithParam<bool> {
 protected:
  KvTransferAgentTest() { Restart({}); }

  static bool maps() { return GetParam(); }

  void Restart(KvTransferAgentOptions options) {
    p_.reset();
    d_.reset();
    network_ = std::make_unique<LoopbackNetwork>();
    options.fingerprint = "model";
    const LoopbackEndpointOptions endpoint{.maps_regions = maps()};
    p_ = std::make_unique<KvTransferSide>(
        network_->CreateEndpoint("p", endpoint), kPoolBlocks, kBlockBytes,
        &clock_, options);
    d_ = std::make_unique<KvTransferSide>(
        network_->CreateEndpoint("d", endpoint), kPoolBlocks, kBlockBytes,
        &clock_, options);
  }

  // Polls until nothing has happened for a while.
  void Settle() {
    for (int quiet = 0; quiet < 4; ++quiet) {
      const bool p = p_->agent().Poll();
      const bool d = d_->agent().Poll();
      if (p || d) quiet = 0;
    }
  }

  // Exports blocks 0..n-1 of P, filled with 100, 101, ...
  KvHandle Export(uint32_t n) {
    std::vector<BlockId> blocks;
    for (uint32_t i = 0; i < n; ++i) {
      blocks.push_back(BlockId(i));
      p_->Fill(BlockId(i), 100 + i);
    }
    return p_->agent().StartExport(kExport, blocks, n * 64);
  }
  // Into blocks of D counted down from the last.
  static BlockId Target(uint32_t i) { return BlockId(kPoolBlocks - 1 - i); }
  void Import(KvHandle handle, uint32_t first_block = 0) {
    std::vector<BlockId> blocks;
    for (uint32_t i = first_block; i < handle.blocks.size(); ++i) {
      blocks.push_back(Target(i));
    }
    d_->agent().StartImport(kImport, std::move(handle), first_block, blocks);
  }
  void PublishAll(uint32_t n) {
    p_->agent().PublishReadable(kExport, n);
    p_->agent().PublishTail(kExport, "tail");
  }
  // A message to P's agent from somebody else.
  void SendToP(const KvTransferMessage& message) {
    if (stranger_ == nullptr) {
      stranger_ = network_->CreateEndpoint("stranger", {});
    }
    stranger_->SendMessage(stranger_->Connect("p").value(),
                           EncodeKvTransferMessage(message));
  }

  std::optional<absl::StatusCode> export_code() const {
    if (!p_->exports().contains(kExport)) return std::nullopt;
    return p_->exports().at(kExport).status.code();
  }
  std::optional<absl::StatusCode> import_code() const {
    if (!d_->imports().contains(kImport)) return std::nullopt;
    return d_->imports().at(kImport).status.code();
  }
  void ExpectBlocksArrived(uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; ++i) {
      EXPECT_TRUE(d_->Holds(Target(i), 100 + i)) << i;
    }
  }

  SimulatedClock clock_;
  std::unique_ptr<LoopbackNetwork> network_;
  std::unique_ptr<Transport> stranger_;
  std::unique_ptr<KvTransferSide> p_, d_;
};

INSTANTIATE_TEST_SUITE_P(Modes, KvTransferAgentTest, ::testing::Bool(),
                         [](const auto& i) {
                           return i.param ? "Pull" : "Push";
                         });

TEST_P(KvTransferAgentTest, BlocksAndTailArriveAndBothSidesEnd) {
  Import(Export(40));
  PublishAll(40);
  Settle();
  EXPECT_EQ(export_code(), absl::StatusCode::kOk);
  ASSERT_EQ(import_code(), absl::StatusCode::kOk);
  const KvImportEnded& ended = d_->imports().at(kImport);
  EXPECT_EQ(ended.tail, "tail");
  EXPECT_EQ(ended.bytes, 40 * kBlockBytes);
  EXPECT_EQ(ended.one_sided, maps());
  ExpectBlocksArrived(0, 40);
}

TEST_P(KvTransferAgentTest, BlocksMoveAsTheyBecomeReadable) {
  Import(Export(6));
  p_->agent().PublishReadable(kExport, 2);
  Settle();
  ExpectBlocksArrived(0, 2);
  EXPECT_FALSE(d_->Holds(Target(2), 102));
  p_->agent().PublishReadable(kExport, 5);
  Settle();
  ExpectBlocksArrived(0, 5);
  EXPECT_FALSE(d_->Holds(Target(5), 105));
  EXPECT_FALSE(import_code().has_value());
  p_->agent().PublishTail(kExport, "");
  Settle();
  EXPECT_FALSE(import_code().has_value());
  p_->agent().PublishReadable(kExport, 6);
  Settle();
  EXPECT_EQ(import_code(), absl::StatusCode::kOk);
  EXPECT_EQ(export_code(), absl::StatusCode::kOk);
}

TEST_P(KvTransferAgentTest, OnlyTheBlocksThatAreLackingMove) {
  Import(Export(5), 3);
  PublishAll(5);
  Settle();
  ASSERT_EQ(import_code(), absl::StatusCode::kOk);
  EXPECT_EQ(d_->imports().at(kImport).bytes, 2 * kBlockBytes);
  ExpectBlocksArrived(3, 5);
  EXPECT_FALSE(d_->Holds(Target(0), 100));
}

TEST_P(KvTransferAgentTest, AnImportThatLacksNothingStillFetchesTheTail) {
  Import(Export(3), 3);
  PublishAll(3);
  Settle();
  ASSERT_EQ(import_code(), absl::StatusCode::kOk);
  EXPECT_EQ(d_->imports().at(kImport).tail, "tail");
  EXPECT_EQ(export_code(), absl::StatusCode::kOk);
}

TEST_P(KvTransferAgentTest, NoMoreThanTheLimitIsInFlight) {
  Restart({.fingerprint = {}, .max_blocks_in_flight = 3});
  Import(Export(10));
  PublishAll(10);
  uint32_t arrived = 0;
  for (int polls = 0; polls < 20 && !import_code().has_value(); ++polls) {
    p_->agent().Poll();
    d_->agent().Poll();
    uint32_t now = 0;
    while (now < 10 && d_->Holds(Target(now), 100 + now)) ++now;
    EXPECT_LE(now, arrived + 3);
    arrived = now;
  }
  EXPECT_EQ(import_code(), absl::StatusCode::kOk);
}

TEST_P(KvTransferAgentTest, CancellingAnImportAtAnyMomentEndsBothSides) {
  for (int polls = 0; polls < 12; ++polls) {
    Restart({.fingerprint = {}, .max_blocks_in_flight = 2});
    Import(Export(6));
    PublishAll(6);
    for (int i = 0; i < polls; ++i) {
      p_->agent().Poll();
      d_->agent().Poll();
    }
    d_->agent().CancelImport(kImport);
    Settle();
    EXPECT_TRUE(export_code() == import_code() &&
                (export_code() == absl::StatusCode::kCancelled ||
                 export_code() == absl::StatusCode::kOk))
        << polls << " polls";
  }
}

TEST_P(KvTransferAgentTest, EndingAnExportAtAnyMomentEndsBothSides) {
  for (int polls = 0; polls < 12; ++polls) {
    Restart({.fingerprint = {}, .max_blocks_in_flight = 2});
    Import(Export(6));
    PublishAll(6);
    for (int i = 0; i < polls; ++i) {
      p_->agent().Poll();
      d_->agent().Poll();
    }
    p_->agent().EndExport(kExport);
    Settle();
    // A pull may have been complete although its done came too late.
    if (export_code() == absl::StatusCode::kOk) {
      EXPECT_EQ(import_code(), absl::StatusCode::kOk) << polls;
    } else {
      EXPECT_EQ(export_code(), absl::StatusCode::kCancelled) << polls;
      EXPECT_TRUE(import_code() == absl::StatusCode::kAborted ||
                  import_code() == absl::StatusCode::kOk)
          << polls;
    }
  }
}

TEST_P(KvTransferAgentTest, AnExportThatNobodyOpensEndsWithItsLease) {
  Export(2);
  PublishAll(2);
  Settle();
  clock_.Advance(absl::Seconds(29));
  Settle();
  EXPECT_FALSE(export_code().has_value());
  clock_.Advance(absl::Seconds(1));
  Settle();
  EXPECT_EQ(export_code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(KvTransferAgentTest, EachPublicationRenewsTheLease) {
  Export(2);
  Settle();
  clock_.Advance(absl::Seconds(29));
  p_->agent().PublishReadable(kExport, 1);
  Settle();
  clock_.Advance(absl::Seconds(29));
  Settle();
  EXPECT_FALSE(export_code().has_value());
}

TEST_P(KvTransferAgentTest, AHandleWhoseLeaseRanOutIsRefused) {
  const KvHandle handle = Export(2);
  Settle();
  clock_.Advance(absl::Seconds(30));
  Settle();
  p_->Fill(BlockId(0), 999);  // Free by now, and used again.
  Import(handle);
  Settle();
  EXPECT_EQ(import_code(), absl::StatusCode::kAborted);
  EXPECT_FALSE(d_->Holds(Target(0), 999));
}

TEST_P(KvTransferAgentTest, ALostDoneEndsTheExportWithItsLease) {
  network_->set_hook([](auto, auto, std::string_view bytes) {
    const auto message = DecodeKvTransferMessage(bytes);
    const bool done =
        message.has_value() && std::holds_alternative<KvDoneMessage>(*message);
    return LoopbackFate{.copies = done ? 0u : 1u};
  });
  Import(Export(2));
  PublishAll(2);
  Settle();
  EXPECT_EQ(import_code(), absl::StatusCode::kOk);
  EXPECT_FALSE(export_code().has_value());
  for (int i = 0; i < 6; ++i) {  // Its repeated states renew nothing.
    clock_.Advance(absl::Seconds(5));
    Settle();
  }
  EXPECT_EQ(export_code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(KvTransferAgentTest, OtherLostMessagesOnlyDelay) {
  for (size_t kind = 0; kind < 3; ++kind) {  // Open, readable, tail.
    Restart({});
    int losses = 2;
    network_->set_hook([&, kind](auto, auto, std::string_view bytes) {
      const auto message = DecodeKvTransferMessage(bytes);
      const bool lose =
          message.has_value() && message->index() == kind && losses-- > 0;
      return LoopbackFate{.copies = lose ? 0u : 1u};
    });
    Import(Export(2));
    PublishAll(2);
    for (int i = 0; i < 3; ++i) {
      Settle();
      clock_.Advance(absl::Seconds(5));
    }
    Settle();
    EXPECT_EQ(import_code(), absl::StatusCode::kOk) << kind;
    EXPECT_EQ(export_code(), absl::StatusCode::kOk) << kind;
  }
}

TEST_P(KvTransferAgentTest, RepeatedMessagesChangeNothing) {
  network_->set_hook(
      [](auto, auto, auto) { return LoopbackFate{.copies = 3}; });
  Import(Export(5));
  PublishAll(5);
  Settle();
  EXPECT_EQ(import_code(), absl::StatusCode::kOk);
  EXPECT_EQ(export_code(), absl::StatusCode::kOk);
  EXPECT_EQ(d_->imports().at(kImport).bytes, 5 * kBlockBytes);
  EXPECT_GT(p_->agent().counters().ignored_messages, 0u);
}

TEST_P(KvTransferAgentTest, ALongPrefillKeepsTheImportAlive) {
  Import(Export(2));
  for (int i = 0; i < 30; ++i) {  // 2.5 minutes without a block.
    Settle();
    clock_.Advance(absl::Seconds(5));
  }
  PublishAll(2);
  Settle();
  EXPECT_EQ(import_code(), absl::StatusCode::kOk);
}

TEST_P(KvTransferAgentTest, AToldDeathOfTheExporterEndsTheImport) {
  Import(Export(2));
  p_->agent().PublishReadable(kExport, 1);
  Settle();
  network_->Kill("p", true);
  Settle();
  EXPECT_EQ(import_code(), absl::StatusCode::kUnavailable);
}

TEST_P(KvTransferAgentTest, ASilentExporterEndsTheImportInTime) {
  Import(Export(2));
  p_->agent().PublishReadable(kExport, 1);
  Settle();
  network_->Kill("p", false);
  for (int i = 0; i < 7; ++i) {
    clock_.Advance(absl::Seconds(5));
    Settle();
  }
  EXPECT_EQ(import_code(), absl::StatusCode::kUnavailable);
}

TEST_P(KvTransferAgentTest, AToldDeathOfTheImporterEndsTheExport) {
  Import(Export(2));
  p_->agent().PublishReadable(kExport, 1);
  Settle();
  network_->Kill("d", true);
  Settle();
  EXPECT_EQ(export_code(), absl::StatusCode::kUnavailable);
}

TEST_P(KvTransferAgentTest, ASilentImporterEndsTheExportInTime) {
  Import(Export(2));
  Settle();
  network_->Kill("d", false);
  p_->agent().PublishReadable(kExport, 2);  // In push mode: sends that hang.
  Settle();
  clock_.Advance(absl::Seconds(30));
  Settle();
  clock_.Advance(absl::Seconds(2));  // The drain's.
  Settle();
  EXPECT_EQ(export_code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(KvTransferAgentTest, OnlyTheFirstOpenerGetsTheExport) {
  const KvHandle handle = Export(2);
  Import(handle);
  Settle();
  const KvOpenMessage foreign{.export_id = kExport,
                              .token = 1,
                              .num_blocks = 2,
                              .block_bytes = kBlockBytes,
                              .max_in_flight = 1,
                              .address = "stranger"};
  SendToP(foreign);
  SendToP(KvDoneMessage{kExport, 1});
  SendToP(KvCancelMessage{kExport, 2});
  PublishAll(2);
  Settle();
  EXPECT_EQ(p_->agent().counters().ignored_messages, 3u);
  EXPECT_EQ(import_code(), absl::StatusCode::kOk);
  EXPECT_EQ(export_code(), absl::StatusCode::kOk);
}

TEST_P(KvTransferAgentTest, AnOpenThatDoesNotFitLeavesTheExportOpenable) {
  const KvHandle handle = Export(2);
  const KvOpenMessage good{.export_id = kExport,
                           .token = 1,
                           .mode = KvTransferMode::kPush,
                           .num_blocks = 2,
                           .block_bytes = kBlockBytes,
                           .max_in_flight = 1,
                           .address = "stranger"};
  std::vector<KvOpenMessage> bad(6, good);
  bad[0].num_blocks = 3;
  bad[1].first_block = 3;
  bad[2].block_bytes = 64;
  bad[3].max_in_flight = 0;
  bad[4].address = "nowhere";
  bad[5].export_id = ExportId(99);
  for (const KvOpenMessage& open : bad) SendToP(open);
  Settle();
  EXPECT_EQ(p_->agent().counters().ignored_messages, bad.size());
  Import(handle);
  PublishAll(2);
  Settle();
  EXPECT_EQ(import_code(), absl::StatusCode::kOk);
}

TEST_P(KvTransferAgentTest, ADoneBeforeEverythingWasPublishedIsIgnored) {
  Export(2);
  SendToP(KvOpenMessage{.export_id = kExport,
                        .token = 5,
                        .num_blocks = 2,
                        .block_bytes = kBlockBytes,
                        .max_in_flight = 1,
                        .address = "stranger"});
  p_->agent().PublishReadable(kExport, 2);
  SendToP(KvDoneMessage{kExport, 5});
  Settle();
  EXPECT_FALSE(export_code().has_value());
  p_->agent().PublishTail(kExport, "tail");
  SendToP(KvDoneMessage{kExport, 5});
  Settle();
  EXPECT_EQ(export_code(), absl::StatusCode::kOk);
}

TEST_P(KvTransferAgentTest, AHandleIsCheckedBeforeAnyTraffic) {
  const KvHandle good = Export(2);
  std::vector<KvHandle> bad(6, good);
  bad[0].fingerprint = "another model";
  bad[1].block_bytes = 64;
  bad[2].pool_blocks = uint64_t{1} << 32;
  bad[3].blocks[1].block = BlockId(kPoolBlocks);
  bad[4].worker_address = "nowhere";
  bad[5].blocks[1] = bad[5].blocks[0];
  for (uint64_t i = 0; i < bad.size(); ++i) {
    d_->agent().StartImport(ImportId(i), bad[i], 0, {Target(0), Target(1)});
  }
  d_->agent().StartImport(ImportId(6), good, 0, {Target(0)});
  d_->agent().StartImport(ImportId(7), good, 3, {});
  Settle();
  ASSERT_EQ(d_->imports().size(), 8u);
  for (const auto& [id, ended] : d_->imports()) {
    EXPECT_EQ(ended.status.code(), id == ImportId(0)
                                       ? absl::StatusCode::kFailedPrecondition
                                       : absl::StatusCode::kInvalidArgument)
        << id;
  }
  EXPECT_EQ(p_->agent().counters().ignored_messages, 0u);
}

TEST_P(KvTransferAgentTest, UnknownIdsAreIgnored) {
  p_->agent().PublishReadable(ExportId(1), 3);
  p_->agent().PublishTail(ExportId(1), "tail");
  p_->agent().EndExport(ExportId(1));
  p_->agent().CancelImport(ImportId(1));
  Settle();
  EXPECT_TRUE(p_->exports().empty());
  EXPECT_TRUE(p_->imports().empty());
}

TEST_P(KvTransferAgentTest, HostileMessagesAreCountedAndChangeNothing) {
  Import(Export(4));
  p_->agent().PublishReadable(kExport, 2);
  Settle();
  stranger_ = network_->CreateEndpoint("stranger", {});
  std::mt19937_64 random(3);
  const std::string seed =
      EncodeKvTransferMessage(KvOpenMessage{.export_id = kExport,
                                            .token = 1,
                                            .num_blocks = 4,
                                            .block_bytes = kBlockBytes,
                                            .address = "stranger"});
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes = seed.substr(0, random() % (seed.size() + 1));
    if (bytes.size() > 3) bytes[3] = static_cast<char>(random() % 8);
    for (uint64_t n = random() % 6; n > 0 && !bytes.empty(); --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const char* const to = random() % 2 == 0 ? "p" : "d";
    stranger_->SendMessage(stranger_->Connect(to).value(), std::move(bytes));
    if (i % 100 == 0) Settle();
  }
  Settle();
  const KvTransferCounters p = p_->agent().counters();
  const KvTransferCounters d = d_->agent().counters();
  EXPECT_GT(p.malformed_messages, 10'000u);
  EXPECT_EQ(p.malformed_messages + p.ignored_messages + d.malformed_messages +
                d.ignored_messages,
            100'000u);
  PublishAll(4);
  Settle();
  EXPECT_EQ(import_code(), absl::StatusCode::kOk);
  EXPECT_EQ(export_code(), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace baton
