// The exporting half of the KV transfer agent: leases on blocks that one peer
// may pull.
#ifndef BATON_COMM_KV_EXPORTER_H_
#define BATON_COMM_KV_EXPORTER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/kv_pool.h"
#include "comm/kv_transfer.h"
#include "comm/kv_transfer_message.h"
#include "comm/kv_transfer_state.h"
#include "comm/transport.h"

namespace baton {

// Owned by the agent's thread. Calls with an id that has ended do nothing.
// Functions that return bool say whether the message or event meant something.
class KvExporter {
 public:
  // Borrows all. Ended exports are appended to `ended`.
  KvExporter(const KvTransferAgentOptions* options, Transport* transport,
             const KvPool* pool, std::vector<KvTransferEvent>* ended);

  void Start(ExportId id, std::vector<BlockId> blocks, absl::Time now);
  void PublishReadable(ExportId id, uint32_t num_blocks, absl::Time now);
  void PublishTail(ExportId id, std::string tail, absl::Time now);
  void End(ExportId id, absl::Time now);

  bool OnMessage(const KvOpenMessage& message, absl::Time now);
  bool OnMessage(const KvDoneMessage& message, absl::Time now);
  bool OnMessage(const KvCancelMessage& message, absl::Time now);
  bool OnTransferDone(const TransferDone& event, absl::Time now);
  void OnPeerFailed(const PeerFailed& event, absl::Time now);

  // Computes a few checksums of one export; false if none is due.
  bool SumSome();
  bool has_sums() const { return !summable_.empty(); }

  // Ends leases, repeats states, closes peers that keep blocks in flight.
  void Sweep(absl::Time now);
  absl::Time next_sweep() const { return next_sweep_; }

 private:
  struct Export {
    ExportId id;
    std::vector<BlockId> blocks;
    KvExportState state = KvExportState::kOpenable;
    uint32_t readable = 0;  // Blocks [0, readable) are final.
    std::optional<std::string> tail;
    absl::Time deadline;  // Of the lease; while draining, of the drain.
    absl::Time next_refresh = absl::InfiniteFuture();
    absl::Status outcome;  // From kDraining on.

    // From kOpened on.
    PeerId peer;
    uint64_t token = 0;
    KvTransferMode mode = KvTransferMode::kPull;
    uint32_t first_block = 0;
    bool wants_checksums = false;
    bool summable = false;            // Is in summable_.
    std::vector<uint64_t> checksums;  // Of blocks from first_block on.
    uint32_t next_block = 0;          // The next to send.
    uint64_t first_tag = 0;
    uint32_t max_in_flight = 0;
    uint32_t in_flight = 0;
  };

  Export* Find(ExportId id);
  // The export, if it is open under this token.
  Export* FindOpened(ExportId id, uint64_t token);
  bool Fits(const Export& e, const KvOpenMessage& message) const;
  void Refuse(const KvOpenMessage& message);
  void MoveTo(Export* e, KvExportState state);
  void Progress(Export* e, absl::Time now);
  // What the peer may take: with checksums, what has its own.
  static uint32_t Announced(const Export& e);
  void Announce(Export* e);
  void MaybeSummable(Export* e);
  void SendState(Export* e, absl::Time now);
  void SendBlocks(Export* e);
  // Ends the export now or when its sends have; `e` may be gone afterwards.
  void Close(Export* e, absl::Status outcome, bool tell_peer, absl::Time now);
  void Report(Export* e);
  void SweepOne(Export* e, absl::Time now);

  const KvTransferAgentOptions* const options_;
  Transport* const transport_;
  const KvPool* const pool_;
  std::vector<KvTransferEvent>* const ended_;

  // In the order of their ids, so that what ends at one time always ends in one
  // order.
  std::map<ExportId, std::unique_ptr<Export>> exports_;
  absl::flat_hash_map<TransferId, ExportId> sends_;
  std::deque<ExportId> summable_;  // Taken in turns.
  absl::Time next_sweep_ = absl::InfiniteFuture();
};

}  // namespace baton

#endif  // BATON_COMM_KV_EXPORTER_H_
