// Random transfers among agents on a bad network, against a model: every
// transfer ends once, what arrived is what was sent, and nobody touches a block
// after its transfer's end.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/loopback_transport.h"
#include "comm/testing/kv_transfer_side.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

constexpr int kSides = 3;
constexpr uint32_t kPoolBlocks = 32;
constexpr size_t kBlockBytes = 64;
constexpr int kSteps = 1500;
constexpr uint64_t kSeeds = 60;

struct ModelExport {
  KvHandle handle;
  std::vector<uint64_t> seeds;  // Of the blocks' contents.
  std::string tail;
  uint32_t readable = 0;
  bool has_tail = false;
  bool imported = false;
};

struct ModelImport {
  std::vector<BlockId> blocks;
  std::vector<uint64_t> seeds;
  std::string tail;
};

// One process and what its engine would know.
struct Process {
  std::unique_ptr<KvTransferSide> side;
  std::string address;
  std::map<BlockId, uint64_t> free;  // With the seed that it must still hold.
  std::map<ExportId, ModelExport> exports;
  std::map<ImportId, ModelImport> imports;
  std::set<ExportId> seen_exports;
  std::set<ImportId> seen_imports;
};

class Soak {
 public:
  explicit Soak(uint64_t seed) : random_(seed) {
    network_.set_hook([this](auto, auto, auto) { return Fate(); });
    for (Process& process : processes_) Boot(&process);
  }

  void Run() {
    for (int i = 0; i < kSteps; ++i) Step();
    faults_ = false;
    for (Process& process : processes_) PublishEverything(&process);
    // Longer than every timeout; in steps, so that refreshes happen.
    for (int i = 0; i < 400; ++i) {
      clock_.Advance(absl::Milliseconds(50));
      for (Process& process : processes_) Poll(&process);
    }
    for (const Process& process : processes_) {
      EXPECT_TRUE(process.exports.empty()) << process.exports.size();
      EXPECT_TRUE(process.imports.empty()) << process.imports.size();
      EXPECT_EQ(process.free.size(), kPoolBlocks);
    }
  }

  int num_ok() const { return num_ok_; }
  int num_failed() const { return num_failed_; }

 private:
  uint64_t Below(uint64_t n) { return random_() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  Process& Any() { return processes_[Below(kSides)]; }

  LoopbackFate Fate() {
    if (!faults_) return {};
    return {.copies = OneIn(20)   ? 0u
                      : OneIn(20) ? 2u
                                  : 1u,
            .delay_polls = OneIn(4) ? static_cast<uint32_t>(Below(20)) : 0u};
  }

  void Boot(Process* process) {
    *process = Process();
    process->address = "process" + std::to_string(++last_id_);
    process->side = std::make_unique<KvTransferSide>(
        network_.CreateEndpoint(process->address, {.maps_regions = OneIn(2)}),
        kPoolBlocks, kBlockBytes, &clock_,
        KvTransferAgentOptions{.fingerprint = {},
                               .lease = absl::Seconds(3),
                               .import_timeout = absl::Seconds(3),
                               .refresh_interval = absl::Milliseconds(400),
                               .drain_timeout = absl::Milliseconds(200),
                               .max_blocks_in_flight = 2,
                               .token_seed = random_()});
    for (uint32_t i = 0; i < kPoolBlocks; ++i) Free(process, BlockId(i));
  }

  // As a new owner would, fills the block at once.
  void Free(Process* process, BlockId block) {
    const uint64_t seed = ++last_id_;
    process->side->Fill(block, seed);
    process->free.emplace(block, seed);
  }
  BlockId Take(Process* process) {
    const auto it = std::next(process->free.begin(),
                              static_cast<int>(Below(process->free.size())));
    const BlockId block = it->first;
    EXPECT_TRUE(process->side->Holds(block, it->second)) << "written when free";
    process->free.erase(it);
    return block;
  }

  void Step() {
    switch (Below(40)) {
      case 0:
      case 1:
        StartExport(&Any());
        break;
      case 2:
      case 3:
        StartImport();
        break;
      case 4:
        EndSomething(&Any());
        break;
      case 5:
        if (OneIn(30)) Crash(&Any());
        break;
      case 6:
        clock_.Advance(absl::Milliseconds(Below(400)));
        break;
      default:
        if (OneIn(4)) PublishSomething(&Any());
        Poll(&Any());
    }
  }

  void StartExport(Process* process) {
    const uint64_t n = std::min<uint64_t>(Below(9), process->free.size());
    const ExportId id(++last_id_);
    ModelExport model;
    std::vector<BlockId> blocks;
    for (uint64_t i = 0; i < n; ++i) {
      blocks.push_back(Take(process));
      model.seeds.push_back(++last_id_);
      process->side->Fill(blocks.back(), model.seeds.back());
    }
    model.tail = "tail of " + std::to_string(id.value());
    model.handle = process->side->agent().StartExport(
        id, blocks, static_cast<uint32_t>(n) * 64);
    process->exports.emplace(id, std::move(model));
  }

  // Of an export of another process; sometimes of one that somebody has.
  void StartImport() {
    Process& from = Any();
    Process& to = Any();
    if (&from == &to || from.exports.empty()) return;
    ModelExport& source =
        std::next(from.exports.begin(),
                  static_cast<int>(Below(from.exports.size())))
            ->second;
    if (source.imported && !OneIn(10)) return;
    const auto n = static_cast<uint32_t>(source.seeds.size());
    const auto first = static_cast<uint32_t>(Below(n + 1));
    if (to.free.size() < n - first) return;
    source.imported = true;
    ModelImport model;
    for (uint32_t i = first; i < n; ++i) {
      model.blocks.push_back(Take(&to));
      model.seeds.push_back(source.seeds[i]);
    }
    model.tail = source.tail;
    const ImportId id(++last_id_);
    to.side->agent().StartImport(id, source.handle, first, model.blocks);
    to.imports.emplace(id, std::move(model));
  }

  void PublishSomething(Process* process) {
    for (auto& [id, model] : process->exports) {
      const auto n = static_cast<uint32_t>(model.seeds.size());
      if (OneIn(2) && model.readable < n) {
        model.readable += 1 + Below(n - model.readable);
        process->side->agent().PublishReadable(id, model.readable);
      } else if (OneIn(4) && !model.has_tail) {
        model.has_tail = true;
        process->side->agent().PublishTail(id, model.tail);
      }
    }
  }

  // A lease lasts as long as both sides live, so prefill has to end some day.
  void PublishEverything(Process* process) {
    for (auto& [id, model] : process->exports) {
      process->side->agent().PublishReadable(
          id, static_cast<uint32_t>(model.seeds.size()));
      if (!model.has_tail) process->side->agent().PublishTail(id, model.tail);
      model.has_tail = true;
    }
  }

  void EndSomething(Process* process) {
    if (OneIn(2) && !process->exports.empty()) {
      process->side->agent().EndExport(process->exports.begin()->first);
    } else if (!process->imports.empty()) {
      process->side->agent().CancelImport(process->imports.begin()->first);
    }
  }

  void Crash(Process* process) {
    network_.Kill(process->address, OneIn(2));
    Boot(process);
  }

  void Poll(Process* process) {
    process->side->agent().Poll();
    for (const auto& [id, ended] : process->side->exports()) {
      if (process->seen_exports.insert(id).second) Finish(process, id);
    }
    for (const auto& [id, ended] : process->side->imports()) {
      if (process->seen_imports.insert(id).second) Finish(process, ended);
    }
  }

  void Finish(Process* process, ExportId id) {
    const auto it = process->exports.find(id);
    ASSERT_NE(it, process->exports.end());
    const ModelExport& model = it->second;
    for (size_t i = 0; i < model.seeds.size(); ++i) {
      const BlockId block = model.handle.blocks[i].block;
      EXPECT_TRUE(process->side->Holds(block, model.seeds[i]));
      Free(process, block);
    }
    process->exports.erase(it);
  }

  void Finish(Process* process, const KvImportEnded& ended) {
    const auto it = process->imports.find(ended.id);
    ASSERT_NE(it, process->imports.end());
    const ModelImport& model = it->second;
    ++(ended.status.ok() ? num_ok_ : num_failed_);
    EXPECT_EQ(ended.tail, ended.status.ok() ? model.tail : "");
    for (size_t i = 0; i < model.blocks.size(); ++i) {
      EXPECT_TRUE(!ended.status.ok() ||
                  process->side->Holds(model.blocks[i], model.seeds[i]));
      Free(process, model.blocks[i]);
    }
    process->imports.erase(it);
  }

  std::mt19937_64 random_;
  SimulatedClock clock_;
  LoopbackNetwork network_;
  bool faults_ = true;
  uint64_t last_id_ = 0;
  int num_ok_ = 0;
  int num_failed_ = 0;
  Process processes_[kSides];
};

TEST(KvTransferSoakTest, EveryTransferEndsOnceAndBringsTheRightBytes) {
  int num_ok = 0;
  int num_failed = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Soak soak(seed);
    soak.Run();
    num_ok += soak.num_ok();
    num_failed += soak.num_failed();
    if (HasFailure()) break;
  }
  std::printf("imports: %d complete, %d failed\n", num_ok, num_failed);
  EXPECT_GT(num_ok, 500);
  EXPECT_GT(num_failed, 250);
}

}  // namespace
}  // namespace baton
