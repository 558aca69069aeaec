// Transfers between two processes over UCX, one of which is killed or stopped.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/testing/kv_handle_text.h"
#include "comm/testing/kv_transfer_side.h"
#include "comm/testing/peer_program.h"
#include "comm/ucx_transport.h"

namespace baton {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);
constexpr uint32_t kBlocks = 48;
constexpr size_t kBlockBytes = 256 << 10;
constexpr ExportId kExport(1);
constexpr ImportId kImport(1);

std::vector<BlockId> AllBlocks() {
  std::vector<BlockId> blocks;
  for (uint32_t i = 0; i < kBlocks; ++i) blocks.push_back(BlockId(i));
  return blocks;
}

class KvTransferProcessTest : public ::testing::TestWithParam<UcxMode> {
 protected:
  KvTransferProcessTest() { Restart({}); }

  void Restart(const KvTransferAgentOptions& options) {
    side_.reset();
    auto transport =
        UcxTransport::Create({.mode = GetParam(), .network_devices = "lo"});
    CHECK_OK(transport.status());
    side_ = std::make_unique<KvTransferSide>(*std::move(transport), kBlocks,
                                             kBlockBytes, &clock_, options);
  }

  std::vector<std::string> Command(std::vector<std::string> role) const {
    std::vector<std::string> command = {
        "comm/testing/kv_peer", GetParam() == UcxMode::kTcp ? "tcp" : "shm",
        std::to_string(kBlocks), std::to_string(kBlockBytes)};
    command.insert(command.end(), role.begin(), role.end());
    return command;
  }

  // Polls until `done`; the time that took.
  template <typename Done>
  absl::Duration Until(Done done) {
    const absl::Time start = absl::Now();
    while (!done() && absl::Now() < start + kDeadline) {
      if (!side_->agent().Poll()) side_->agent().Wait(absl::Milliseconds(10));
    }
    EXPECT_TRUE(done());
    return absl::Now() - start;
  }
  bool import_ended() const { return side_->imports().contains(kImport); }
  bool export_ended() const { return side_->exports().contains(kExport); }
  absl::StatusCode import_code() const {
    return side_->imports().at(kImport).status.code();
  }
  absl::StatusCode export_code() const {
    return side_->exports().at(kExport).status.code();
  }

  // Imports from the child; its handle is the first line.
  void ImportFrom(PeerProgram* child) {
    side_->agent().StartImport(kImport, KvHandleFromText(child->ReadLine()), 0,
                               AllBlocks());
  }
  // Exports to the child all blocks, of which `readable` are published.
  void ExportTo(PeerProgram* child, uint32_t readable) {
    ASSERT_EQ(child->ReadLine(), "ready");
    for (uint32_t i = 0; i < kBlocks; ++i) side_->Fill(BlockId(i), i);
    const KvHandle handle =
        side_->agent().StartExport(kExport, AllBlocks(), kBlocks * 64);
    side_->agent().PublishReadable(kExport, readable);
    if (readable == kBlocks) side_->agent().PublishTail(kExport, "tail");
    child->WriteLine(KvHandleToText(handle));
  }

  const MonotonicClock clock_;
  std::unique_ptr<KvTransferSide> side_;
};

INSTANTIATE_TEST_SUITE_P(Modes, KvTransferProcessTest,
                         ::testing::Values(UcxMode::kShm, UcxMode::kTcp),
                         [](const auto& i) {
                           return i.param == UcxMode::kShm ? "Shm" : "Tcp";
                         });

TEST_P(KvTransferProcessTest, AnImportBringsTheChildsBytes) {
  PeerProgram child(Command({"export", std::to_string(kBlocks)}));
  ImportFrom(&child);
  Until([&] { return import_ended(); });
  ASSERT_EQ(import_code(), absl::StatusCode::kOk);
  EXPECT_EQ(side_->imports().at(kImport).tail, "tail");
  EXPECT_EQ(side_->imports().at(kImport).one_sided,
            GetParam() == UcxMode::kShm);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    EXPECT_TRUE(side_->Holds(BlockId(i), i)) << i;
  }
  Until([&] { return child.HasOutput(); });
  EXPECT_EQ(child.ReadLine(), "ended 0 " + std::to_string(kBlocks));
}

TEST_P(KvTransferProcessTest, TheChildGetsOurBytes) {
  PeerProgram child(Command({"import"}));
  ExportTo(&child, kBlocks);
  Until([&] { return export_ended(); });
  EXPECT_EQ(export_code(), absl::StatusCode::kOk);
  EXPECT_EQ(child.ReadLine(), "ended 0 " + std::to_string(kBlocks));
}

TEST_P(KvTransferProcessTest, AKilledExporterEndsTheImportAndNothingElse) {
  for (uint32_t readable : {0u, 1u, 20u, kBlocks - 1}) {
    Restart({});
    PeerProgram child(Command({"export", std::to_string(readable)}));
    ImportFrom(&child);
    for (uint32_t i = 0; i < readable; ++i) {
      Until([&] { return side_->Holds(BlockId(i), i); });
    }
    child.Signal(SIGKILL);
    const absl::Duration took = Until([&] { return import_ended(); });
    std::printf("noticed after %s\n", absl::FormatDuration(took).c_str());
    ASSERT_EQ(import_code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(side_->imports().at(kImport).tail, "");
  }
}

TEST_P(KvTransferProcessTest, AnExporterKilledAtAnyMomentOfAPullEndsTheImport) {
  for (uint32_t moment = 0; moment < kBlocks; moment += 5) {
    Restart({});
    PeerProgram child(Command({"export", std::to_string(kBlocks)}));
    ImportFrom(&child);
    Until([&] {
      return import_ended() || side_->Holds(BlockId(moment), moment);
    });
    child.Signal(SIGKILL);
    Until([&] { return import_ended(); });
    EXPECT_TRUE(import_code() == absl::StatusCode::kUnavailable ||
                import_code() == absl::StatusCode::kOk)
        << moment;
    if (import_code() != absl::StatusCode::kOk) continue;
    for (uint32_t i = 0; i < kBlocks; ++i) {
      EXPECT_TRUE(side_->Holds(BlockId(i), i)) << i;
    }
  }
}

TEST_P(KvTransferProcessTest, AKilledImporterEndsTheExportAndTheNextWorks) {
  {
    PeerProgram child(Command({"import"}));
    ExportTo(&child, 20);
    const absl::Time until = absl::Now() + absl::Milliseconds(300);
    Until([&] { return absl::Now() > until; });
    child.Signal(SIGKILL);
    Until([&] { return export_ended(); });
    EXPECT_EQ(export_code(), absl::StatusCode::kUnavailable);
  }
  PeerProgram child(Command({"export", std::to_string(kBlocks)}));
  ImportFrom(&child);
  Until([&] { return import_ended(); });
  EXPECT_EQ(import_code(), absl::StatusCode::kOk);
}

// Also while it connects, which must not take us with it.
TEST_P(KvTransferProcessTest, AnImporterKilledAtAnyMomentEndsTheExport) {
  std::map<absl::StatusCode, int> ends;
  for (int moment = 0; moment < 12; ++moment) {
    Restart({.fingerprint = {}, .lease = absl::Milliseconds(500)});
    PeerProgram child(Command({"import"}));
    ExportTo(&child, kBlocks);
    const absl::Time until = absl::Now() + moment * absl::Milliseconds(2);
    Until([&] { return absl::Now() >= until; });
    child.Signal(SIGKILL);
    Until([&] { return export_ended(); });
    EXPECT_TRUE(export_code() == absl::StatusCode::kOk ||
                export_code() == absl::StatusCode::kUnavailable ||
                export_code() == absl::StatusCode::kDeadlineExceeded)
        << side_->exports().at(kExport).status.ToString();
    ++ends[export_code()];
  }
  for (const auto& [code, times] : ends) {
    std::printf("%s %d times\n", absl::StatusCodeToString(code).c_str(), times);
  }
}

TEST_P(KvTransferProcessTest, AStoppedImporterEndsTheExportWithItsLease) {
  Restart({.fingerprint = {},
           .lease = absl::Seconds(1),
           .drain_timeout = absl::Milliseconds(100)});
  PeerProgram child(Command({"import"}));
  ExportTo(&child, 1);
  const absl::Time until = absl::Now() + absl::Milliseconds(300);
  Until([&] { return absl::Now() > until; });
  child.Signal(SIGSTOP);
  // With tcp, these sends hang until the peer is closed by force.
  side_->agent().PublishReadable(kExport, kBlocks);
  Until([&] { return export_ended(); });
  EXPECT_EQ(export_code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(KvTransferProcessTest, AStoppedExporterEndsTheImportInTime) {
  Restart({.fingerprint = {},
           .import_timeout = absl::Seconds(1),
           .drain_timeout = absl::Milliseconds(100)});
  PeerProgram child(Command({"export", "20"}));
  ImportFrom(&child);
  Until([&] { return side_->Holds(BlockId(0), 0); });
  child.Signal(SIGSTOP);
  Until([&] { return import_ended(); });
  EXPECT_EQ(import_code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton
