// One process of a KV transfer, for tests: a transport, its pool, an agent, and
// what the agent reported.
#ifndef BATON_COMM_TESTING_KV_TRANSFER_SIDE_H_
#define BATON_COMM_TESTING_KV_TRANSFER_SIDE_H_

#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/logging.h"
#include "comm/kv_pool.h"
#include "comm/kv_transfer_agent.h"
#include "comm/transport.h"

namespace baton {

// Thread-compatible.
class KvTransferSide {
 public:
  KvTransferSide(std::unique_ptr<Transport> transport, uint32_t num_blocks,
                 size_t block_bytes, const Clock* clock,
                 KvTransferAgentOptions options = {})
      : transport_(std::move(transport)) {
    const auto region = transport_->AllocateRegion(
        KvPool::RegionBytes(num_blocks, block_bytes));
    CHECK_OK(region.status());
    pool_ = std::make_unique<KvPool>(*region, num_blocks, block_bytes);
    agent_ = std::make_unique<KvTransferAgent>(
        std::move(options), transport_.get(), pool_.get(), clock,
        [this](KvTransferEvent event) { Record(std::move(event)); });
  }

  Transport& transport() { return *transport_; }
  KvPool& pool() { return *pool_; }
  KvTransferAgent& agent() { return *agent_; }

  // Gives the block new content made of `seed`.
  void Fill(BlockId block, uint64_t seed) {
    pool_->BeginNewContent(block);
    for (size_t at = 0; at < pool_->block_bytes(); at += sizeof seed) {
      const uint64_t word = Word(seed, at);
      std::memcpy(pool_->block(block) + at, &word, sizeof word);
    }
  }
  bool Holds(BlockId block, uint64_t seed) const {
    for (size_t at = 0; at < pool_->block_bytes(); at += sizeof seed) {
      const uint64_t word = Word(seed, at);
      if (std::memcmp(pool_->block(block) + at, &word, sizeof word) != 0) {
        return false;
      }
    }
    return true;
  }

  // Everything that has ended. Each id at most once, or it dies.
  const std::map<ExportId, KvExportEnded>& exports() const { return exports_; }
  const std::map<ImportId, KvImportEnded>& imports() const { return imports_; }

 private:
  static uint64_t Word(uint64_t seed, size_t at) {
    return (seed + 1) * 0x9e3779b97f4a7c15 + at;
  }
  void Record(KvTransferEvent event) {
    if (auto* ended = std::get_if<KvExportEnded>(&event)) {
      CHECK(exports_.emplace(ended->id, *ended).second) << ended->id;
    } else {
      const auto& import = std::get<KvImportEnded>(event);
      CHECK(imports_.emplace(import.id, import).second) << import.id;
    }
  }

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<KvPool> pool_;
  std::map<ExportId, KvExportEnded> exports_;
  std::map<ImportId, KvImportEnded> imports_;
  std::unique_ptr<KvTransferAgent> agent_;
};

}  // namespace baton

#endif  // BATON_COMM_TESTING_KV_TRANSFER_SIDE_H_
