// The importing half of the KV transfer agent: pulls blocks into ours.
#ifndef BATON_COMM_KV_IMPORTER_H_
#define BATON_COMM_KV_IMPORTER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
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

// What to bring where.
struct KvImportRequest {
  ImportId id;
  KvHandle handle;
  uint32_t first_block = 0;
  std::vector<BlockId> blocks;  // For handle.blocks[first_block..].
};

// Owned by the agent's thread. Calls with an id that has ended do nothing.
// Functions that return bool say whether the message or event meant something.
class KvImporter {
 public:
  // Borrows all. Ended imports are appended to `ended`.
  KvImporter(const KvTransferAgentOptions* options, Transport* transport,
             const KvPool* pool, std::vector<KvTransferEvent>* ended);

  void Start(KvImportRequest request, absl::Time now);
  void Cancel(ImportId id, absl::Time now);

  bool OnMessage(const KvReadableMessage& message, absl::Time now);
  bool OnMessage(const KvTailMessage& message, absl::Time now);
  bool OnMessage(const KvEndedMessage& message, absl::Time now);
  bool OnTransferDone(const TransferDone& event, absl::Time now);
  void OnPeerFailed(const PeerFailed& event, absl::Time now);

  // Copies a few readable blocks of one import; false if there are none.
  bool CopySome(absl::Time now);
  bool has_copies() const { return !copyable_.empty(); }

  // Ends silent imports, repeats opens, closes peers that keep receives.
  void Sweep(absl::Time now);
  absl::Time next_sweep() const { return next_sweep_; }

  uint64_t num_damaged_blocks() const { return num_damaged_blocks_; }

 private:
  struct Import {
    KvImportRequest request;
    KvImportState state = KvImportState::kOpening;
    PeerId peer;
    uint64_t token = 0;
    const std::byte* remote = nullptr;  // The exporter's region; null: kPush.
    uint64_t first_tag = 0;
    uint32_t readable = 0;      // handle.blocks[0, readable) are final.
    uint32_t copied = 0;        // Of request.blocks; they are copied in order.
    bool copyable = false;      // Is in copyable_.
    uint32_t received = 0;      // Of request.blocks.
    std::vector<bool> arrived;  // Which those are.
    std::vector<uint64_t> checksums;  // Of request.blocks, as far as told.
    uint32_t checked = 0;             // Of request.blocks, in their order.
    // Outstanding, each for which of request.blocks.
    std::map<TransferId, uint32_t> receives;
    std::optional<std::string> tail;
    absl::Time start;
    absl::Time deadline;
    absl::Time next_refresh = absl::InfiniteFuture();
    absl::Status outcome;  // From kDraining on.
  };

  // Everything about a handle that can be checked without its owner.
  absl::Status Validate(const KvImportRequest& request) const;
  // Connects and maps, or posts the receives.
  absl::Status Prepare(Import* import);
  Import* Find(ImportId id);
  // The import of this name that is not draining, its exporter being alive.
  Import* Hear(uint64_t token, absl::Time now);
  void MoveTo(Import* import, KvImportState state);
  void SendOpen(Import* import, absl::Time now);
  void MaybeCopyable(Import* import);
  void Arrive(Import* import, uint32_t block);  // Of request.blocks.
  // Whether what has arrived is what was sent, as far as that is known.
  bool Check(Import* import);
  // After a block or word of one: ends the import if it is whole, or damaged.
  void MaybeFinish(Import* import, absl::Time now);
  // Ends the import now or when its receives have; it may be gone afterwards.
  void Fail(Import* import, absl::Status outcome, bool tell_peer,
            absl::Time now);
  void Report(Import* import, absl::Time now);
  void SweepOne(Import* import, absl::Time now);

  const KvTransferAgentOptions* const options_;
  Transport* const transport_;
  const KvPool* const pool_;
  std::vector<KvTransferEvent>* const ended_;

  std::mt19937_64 random_;
  uint64_t next_tag_;
  // In the order of their ids, as the exporter's.
  std::map<ImportId, std::unique_ptr<Import>> imports_;
  absl::flat_hash_map<uint64_t, ImportId> tokens_;
  absl::flat_hash_map<TransferId, ImportId> receives_;
  std::deque<ImportId> copyable_;  // Taken in turns.
  absl::Time next_sweep_ = absl::InfiniteFuture();
  uint64_t num_damaged_blocks_ = 0;
};

}  // namespace baton

#endif  // BATON_COMM_KV_IMPORTER_H_
