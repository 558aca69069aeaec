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
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/strong_int.h"
#include "comm/kv_pool.h"

namespace baton {

class Transport;

BATON_DEFINE_STRONG_INT(ExportId, uint64_t);
BATON_DEFINE_STRONG_INT(ImportId, uint64_t);

struct KvBlockRef {
  BlockId block;
  uint64_t generation = 0;
};

// Names exported blocks to another process. Travels as
// proto/baton/v1/kv_handle.proto.
struct KvHandle {
  std::string fingerprint;
  ExportId export_id;
  std::string worker_address;
  std::string remote_key;     // Empty: no one-sided access.
  uint64_t base_address = 0;  // Of the pool's region, in the owner.
  std::string host_id;
  uint64_t pool_blocks = 0;
  uint64_t block_bytes = 0;
  std::vector<KvBlockRef> blocks;
  uint32_t num_tokens = 0;
};

struct KvExportEnded {
  ExportId id;
  // OK: a peer has pulled everything. CANCELLED: EndExport. DEADLINE_EXCEEDED:
  // the lease ran out. UNAVAILABLE: the peer is gone.
  absl::Status status;
};

struct KvImportEnded {
  ImportId id;
  // ABORTED: the exporter ended the lease or reused a block; UNAVAILABLE: gone;
  // CANCELLED: CancelImport; INVALID_ARGUMENT: the handle does not fit its
  // pool.
  absl::Status status;
  std::string tail;  // As published; empty unless OK.
  uint64_t bytes = 0;
  absl::Duration duration;
};

using KvTransferEvent = std::variant<KvExportEnded, KvImportEnded>;

struct KvTransferAgentOptions {
  std::string fingerprint;
  // A lease ends this long after its last progress.
  absl::Duration lease = absl::Seconds(30);
};

// The calls are thread-safe: they queue a command for the agent's thread, which
// is the one that calls Poll(). `on_event` runs inside Poll().
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

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace baton

#endif  // BATON_COMM_KV_TRANSFER_AGENT_H_
