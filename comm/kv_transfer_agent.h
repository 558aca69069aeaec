// Moves KV blocks from the pool of the process that computed them to the pool
// of the one that goes on with them. One agent a process serves both
// directions.
//
//   exporter (prefill)                        importer (decode)
//   StartExport -> KvHandle  ... router ...   StartImport(handle, local blocks)
//                    <---- open(export, my address, first block) ----
//   PublishReadable  ---- readable(n) ---->   pulls blocks [.., n)
//   PublishTail      ---- tail(bytes) ---->
//                    <---- done ----          KvImportEnded(OK, tail)
//   KvExportEnded(OK)
//
// Blocks are the engine's: it may free an export's blocks only after
// KvExportEnded, and use or free an import's only after KvImportEnded. Each
// started export and import ends with exactly one such event, whatever fails.
#ifndef BATON_COMM_KV_TRANSFER_AGENT_H_
#define BATON_COMM_KV_TRANSFER_AGENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "comm/kv_pool.h"
#include "comm/kv_transfer.h"

namespace baton {

class Transport;

// The calls are thread-safe: they queue a command for the agent's thread, which
// is the one that calls Poll(). `on_event` runs inside Poll(). What has not
// ended when the agent is destroyed never ends; the transport must be destroyed
// before such blocks are freed.
class KvTransferAgent {
 public:
  // Borrows all; they must outlive the agent.
  KvTransferAgent(KvTransferAgentOptions options, Transport* transport,
                  const KvPool* pool, const Clock* clock,
                  std::function<void(KvTransferEvent)> on_event);
  ~KvTransferAgent();
  KvTransferAgent(const KvTransferAgent&) = delete;
  KvTransferAgent& operator=(const KvTransferAgent&) = delete;

  // `blocks` hold num_tokens of KV, or will; the handle pins their present
  // generations. Nothing is readable yet.
  KvHandle StartExport(ExportId id, std::vector<BlockId> blocks,
                       uint32_t num_tokens);
  // The first `num_blocks` blocks are final. REQUIRES: their writes are done.
  void PublishReadable(ExportId id, uint32_t num_blocks);
  // REQUIRES: at most kMaxKvTailBytes.
  void PublishTail(ExportId id, std::string tail);
  // Ends the lease early. KvExportEnded still follows.
  void EndExport(ExportId id);

  // Pulls handle.blocks[first_block..] into `blocks`, equally many.
  void StartImport(ImportId id, KvHandle handle, uint32_t first_block,
                   std::vector<BlockId> blocks);
  void CancelImport(ImportId id);

  // Advances everything without blocking; true if there was something to do.
  bool Poll();
  // Blocks until Poll() may have work, or `timeout`; thread-safe Wake() ends
  // it.
  void Wait(absl::Duration timeout);
  void Wake();

  KvTransferCounters counters() const;  // Thread-safe.

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace baton

#endif  // BATON_COMM_KV_TRANSFER_AGENT_H_
