// Transfers between two processes over UCX, one of which is killed or stopped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/testing/kv_handle_text.h"
#include "comm/testing/kv_transfer_side.h"
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

// The kv_peer program as a child, with its input and output.
class Child {
 public:
  explicit Child(std::vector<std::string> arguments) {
    int in[2], out[2];
    CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      std::vector<char*> argv;
      argv.reserve(arguments.size() + 1);
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    input_ = in[1];
    output_ = out[0];
  }
  // Ends its input; a healthy child leaves then.
  ~Child() {
    close(input_);
    Signal(SIGCONT);
    int status = 0;
    waitpid(pid_, &status, 0);
    EXPECT_TRUE(killed_ || status == 0) << status;
    close(output_);
  }

  void Signal(int signal) {
    killed_ |= signal == SIGKILL;
    kill(pid_, signal);
  }
  void Write(std::string line) {
    line += '\n';
    CHECK_EQ(write(input_, line.data(), line.size()),
             static_cast<ssize_t>(line.size()));
  }
  bool HasOutput() const {
    pollfd output = {output_, POLLIN, 0};
    return poll(&output, 1, 0) > 0;
  }
  std::string ReadLine() {
    std::string line;
    char c = 0;
    while (read(output_, &c, 1) == 1 && c != '\n') line += c;
    return line;
  }

 private:
  pid_t pid_;
  int input_;
  int output_;
  bool killed_ = false;
};

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
  void ImportFrom(Child* child) {
    side_->agent().StartImport(kImport, KvHandleFromText(child->ReadLine()), 0,
                               AllBlocks());
  }
  // Exports to the child all blocks, of which `readable` are published.
  void ExportTo(Child* child, uint32_t readable) {
    ASSERT_EQ(child->ReadLine(), "ready");
    for (uint32_t i = 0; i < kBlocks; ++i) side_->Fill(BlockId(i), i);
    const KvHandle handle =
        side_->agent().StartExport(kExport, AllBlocks(), kBlocks * 64);
    side_->agent().PublishReadable(kExport, readable);
    if (readable == kBlocks) side_->agent().PublishTail(kExport, "tail");
    child->Write(KvHandleToText(handle));
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
  Child child(Command({"export", std::to_string(kBlocks)}));
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
  Child child(Command({"import"}));
  ExportTo(&child, kBlocks);
  Until([&] { return export_ended(); });
  EXPECT_EQ(export_code(), absl::StatusCode::kOk);
  EXPECT_EQ(child.ReadLine(), "ended 0 " + std::to_string(kBlocks));
}

TEST_P(KvTransferProcessTest, AKilledExporterEndsTheImportAndNothingElse) {
  for (uint32_t readable : {0u, 1u, 20u, kBlocks - 1}) {
    Restart({});
    Child child(Command({"export", std::to_string(readable)}));
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
    Child child(Command({"export", std::to_string(kBlocks)}));
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
    Child child(Command({"import"}));
    ExportTo(&child, 20);
    const absl::Time until = absl::Now() + absl::Milliseconds(300);
    Until([&] { return absl::Now() > until; });
    child.Signal(SIGKILL);
    Until([&] { return export_ended(); });
    EXPECT_EQ(export_code(), absl::StatusCode::kUnavailable);
  }
  Child child(Command({"export", std::to_string(kBlocks)}));
  ImportFrom(&child);
  Until([&] { return import_ended(); });
  EXPECT_EQ(import_code(), absl::StatusCode::kOk);
}

// Also while it connects, which must not take us with it.
TEST_P(KvTransferProcessTest, AnImporterKilledAtAnyMomentEndsTheExport) {
  std::map<absl::StatusCode, int> ends;
  for (int moment = 0; moment < 12; ++moment) {
    Restart({.fingerprint = {}, .lease = absl::Milliseconds(500)});
    Child child(Command({"import"}));
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
  Child child(Command({"import"}));
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
  Child child(Command({"export", "20"}));
  ImportFrom(&child);
  Until([&] { return side_->Holds(BlockId(0), 0); });
  child.Signal(SIGSTOP);
  Until([&] { return import_ended(); });
  EXPECT_EQ(import_code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton
