// The values of a KV transfer: what names it, bounds it and ends it.
#ifndef BATON_COMM_KV_TRANSFER_H_
#define BATON_COMM_KV_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/prefix_key.h"
#include "base/strong_int.h"
#include "comm/kv_pool.h"

namespace baton {

BATON_DEFINE_STRONG_INT(ExportId, uint64_t);
BATON_DEFINE_STRONG_INT(ImportId, uint64_t);

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
  PrefixKey prefix_key;  // Of these tokens, whole.
};

struct KvExportEnded {
  ExportId id;
  // OK: a peer has pulled everything. CANCELLED: EndExport, or the importer
  // gave up. DEADLINE_EXCEEDED: the lease ran out. UNAVAILABLE: the peer is
  // gone.
  absl::Status status;
};

struct KvImportEnded {
  ImportId id;
  // ABORTED: the exporter ended the lease or reused a block, or one arrived
  // damaged; UNAVAILABLE: gone or silent; CANCELLED: CancelImport;
  // INVALID_ARGUMENT: the handle does not fit its pool or ours;
  // FAILED_PRECONDITION: another fingerprint, or no way to move blocks between
  // these two processes.
  absl::Status status;
  std::string tail;  // As published; empty unless OK.
  uint64_t bytes = 0;
  absl::Duration duration;
  bool one_sided = false;  // Copied from the peer's memory, not sent by it.
};

using KvTransferEvent = std::variant<KvExportEnded, KvImportEnded>;

struct KvTransferAgentOptions {
  std::string fingerprint;
  // A lease ends this long after its last progress: the export's start, a
  // publication, a block sent, a sign of life from the importer.
  absl::Duration lease = absl::Seconds(30);
  // An import ends when for this long no block came that is readable, or, with
  // none due, no word from its exporter.
  absl::Duration import_timeout = absl::Seconds(30);
  // Both sides repeat what they know this often, so lost messages only delay.
  absl::Duration refresh_interval = absl::Seconds(5);
  // Of an ended transfer, for its last blocks in flight; then by force.
  absl::Duration drain_timeout = absl::Seconds(2);
  // Of one transfer.
  uint32_t max_blocks_in_flight = 16;
  // Imports compare what arrived with checksums, which exporters compute when
  // asked to.
  bool checksums = true;
  // Of the secrets that name transfers; 0 draws one. Simulations set it.
  uint64_t token_seed = 0;
};

inline constexpr size_t kMaxKvTailBytes = 1 << 20;

// Since the start.
struct KvTransferCounters {
  uint64_t malformed_messages = 0;
  uint64_t ignored_messages = 0;  // Late, duplicate, or not meant for us.
  uint64_t damaged_blocks = 0;    // That arrived, and ended their import.
};

}  // namespace baton

#endif  // BATON_COMM_KV_TRANSFER_H_
