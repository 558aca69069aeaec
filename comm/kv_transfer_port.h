// One rank's door to the transfer agent of its process.
#ifndef BATON_COMM_KV_TRANSFER_PORT_H_
#define BATON_COMM_KV_TRANSFER_PORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "comm/kv_pool.h"
#include "comm/kv_transfer.h"
#include "comm/kv_transfer_agent.h"

namespace baton {

// The rank has block ids and transfer ids of its own; the agent knows those of
// the process: its pool has each rank's blocks one after the other
// (KvPool::Slice), and its transfer ids name the rank. A value; thread-safe as
// the agent is.
class KvTransferPort {
 public:
  // Ids of a rank's own are below.
  static constexpr int kIdBits = 48;

  // No transfers here.
  KvTransferPort() = default;
  // Borrows the agent. Alone, a rank needs no numbers. (Implicit, so that an
  // agent is a port where there is one rank.)
  KvTransferPort(KvTransferAgent* agent, uint32_t local_rank = 0,
                 BlockId first_block = BlockId())
      : agent_(agent), local_rank_(local_rank), first_block_(first_block) {}

  explicit operator bool() const { return agent_ != nullptr; }

  // As KvTransferAgent's.
  KvHandle StartExport(ExportId id, std::vector<BlockId> blocks,
                       uint32_t num_tokens) const;
  void PublishReadable(ExportId id, uint32_t num_blocks) const;
  void PublishTail(ExportId id, std::string tail) const;
  void EndExport(ExportId id) const;
  void StartImport(ImportId id, KvHandle handle, uint32_t first_block,
                   std::vector<BlockId> blocks) const;
  void CancelImport(ImportId id) const;

  // Whose event of the agent it is, and the same with the rank's own id.
  static uint32_t LocalRankOf(const KvTransferEvent& event);
  static KvTransferEvent ToRank(KvTransferEvent event);

 private:
  template <typename Id>
  Id ToProcess(Id id) const;
  std::vector<BlockId> ToProcess(std::vector<BlockId> blocks) const;

  KvTransferAgent* agent_ = nullptr;
  uint32_t local_rank_ = 0;
  BlockId first_block_;
};

}  // namespace baton

#endif  // BATON_COMM_KV_TRANSFER_PORT_H_
