#include "comm/kv_importer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "comm/kv_checksum.h"

namespace baton {
namespace {

KvImportEnded Ended(ImportId id, absl::Status status) {
  KvImportEnded ended;
  ended.id = id;
  ended.status = std::move(status);
  return ended;
}

// A block that has just arrived.
void MaybeDamage(std::byte* block, size_t bytes) {
  if (ReachFaultPoint(FaultPoint::kKvImportBlock)) {
    block[bytes / 3] ^= std::byte{4};
  }
  if (ReachFaultPoint(FaultPoint::kKvImportCut)) {
    std::fill(block + bytes / 2, block + bytes, std::byte{0});
  }
}

}  // namespace

KvImporter::KvImporter(const KvTransferAgentOptions* options,
                       Transport* transport, const KvPool* pool,
                       std::vector<KvTransferEvent>* ended)
    : options_(options),
      transport_(transport),
      pool_(pool),
      ended_(ended),
      random_(options->token_seed != 0 ? options->token_seed : RandomBits()),
      next_tag_(random_()) {}

void KvImporter::Start(KvImportRequest request, absl::Time now) {
  const ImportId id = request.id;
  CHECK(!imports_.contains(id)) << "import " << id;
  if (absl::Status status = Validate(request); !status.ok()) {
    ended_->push_back(Ended(id, std::move(status)));
    return;
  }
  auto import = std::make_unique<Import>();
  import->request = std::move(request);
  import->arrived.resize(import->request.blocks.size());
  import->start = now;
  import->deadline = now + options_->import_timeout;
  next_sweep_ = std::min(next_sweep_, import->deadline);
  if (absl::Status status = Prepare(import.get()); !status.ok()) {
    ended_->push_back(Ended(id, std::move(status)));
    return;
  }
  tokens_.emplace(import->token, id);
  ReachFaultPoint(FaultPoint::kKvImportOpen);
  SendOpen(import.get(), now);
  imports_.emplace(id, std::move(import));
}

void KvImporter::Cancel(ImportId id, absl::Time now) {
  Import* import = Find(id);
  if (import == nullptr || import->state == KvImportState::kDraining) return;
  Fail(import, absl::CancelledError("cancelled"), true, now);
}

bool KvImporter::OnMessage(const KvReadableMessage& message, absl::Time now) {
  Import* import = Hear(message.token, now);
  if (import == nullptr) return false;
  if (message.num_blocks > import->request.handle.blocks.size()) return false;
  if (message.num_blocks <= import->readable) return true;
  if (options_->checksums && message.num_blocks > import->request.first_block &&
      message.num_blocks - import->request.first_block !=
          message.checksums.size()) {
    return false;
  }
  import->readable = message.num_blocks;
  import->checksums = message.checksums;
  import->deadline = now + options_->import_timeout;
  MaybeCopyable(import);
  MaybeFinish(import, now);
  return true;
}

bool KvImporter::OnMessage(const KvTailMessage& message, absl::Time now) {
  if (message.tail.size() > kMaxKvTailBytes) return false;
  if (ReachFaultPoint(FaultPoint::kKvImportTail)) return false;
  Import* import = Hear(message.token, now);
  if (import == nullptr) return false;
  if (!import->tail.has_value()) import->tail = message.tail;
  MaybeFinish(import, now);
  return true;
}

bool KvImporter::OnMessage(const KvEndedMessage& message, absl::Time now) {
  Import* import = Hear(message.token, now);
  if (import == nullptr) return false;
  Fail(import, absl::AbortedError("the exporter ended the lease"), false, now);
  return true;
}

bool KvImporter::OnTransferDone(const TransferDone& event, absl::Time now) {
  const auto it = receives_.find(event.id);
  if (it == receives_.end()) return false;
  Import* import = Find(it->second);
  receives_.erase(it);
  CHECK(import != nullptr);
  const auto receive = import->receives.find(event.id);
  CHECK(receive != import->receives.end());
  const uint32_t block = receive->second;
  import->receives.erase(receive);
  if (import->state == KvImportState::kDraining) {
    if (import->receives.empty()) Report(import, now);
    return true;
  }
  if (!event.status.ok()) {
    Fail(import, absl::UnavailableError("a block was not received"), true, now);
    return true;
  }
  Arrive(import, block);
  import->deadline = now + options_->import_timeout;
  MaybeFinish(import, now);
  return true;
}

void KvImporter::OnPeerFailed(const PeerFailed& event, absl::Time now) {
  std::vector<Import*> theirs;
  for (const auto& [id, import] : imports_) {
    if (import->state != KvImportState::kDraining &&
        import->peer == event.peer) {
      theirs.push_back(import.get());
    }
  }
  for (Import* import : theirs) {
    Fail(import, absl::UnavailableError("the exporter is gone"), false, now);
  }
}

bool KvImporter::CopySome(absl::Time now) {
  if (copyable_.empty()) return false;
  Import* import = Find(copyable_.front());
  copyable_.pop_front();
  // One that ended meanwhile leaves its turn to nobody; the caller comes again.
  if (import == nullptr || import->state == KvImportState::kDraining) {
    return true;
  }
  import->copyable = false;
  const KvImportRequest& request = import->request;
  const auto pool_blocks = static_cast<uint32_t>(request.handle.pool_blocks);
  for (uint32_t i = 0; i < options_->max_blocks_in_flight &&
                       request.first_block + import->copied < import->readable;
       ++i) {
    const KvBlockRef& ref =
        request.handle.blocks[request.first_block + import->copied];
    if (!CopyBlockIfCurrent(import->remote, pool_blocks, pool_->block_bytes(),
                            ref,
                            pool_->block(request.blocks[import->copied]))) {
      Fail(import, absl::AbortedError("the exporter reused a block"), true,
           now);
      return true;
    }
    Arrive(import, import->copied++);
    if (!Check(import)) break;  // While it is in the caches.
  }
  import->deadline = now + options_->import_timeout;
  MaybeCopyable(import);
  MaybeFinish(import, now);
  return true;
}

void KvImporter::Sweep(absl::Time now) {
  std::vector<Import*> due;
  next_sweep_ = absl::InfiniteFuture();
  for (const auto& [id, import] : imports_) {
    const absl::Time next = std::min(import->deadline, import->next_refresh);
    if (next <= now) {
      due.push_back(import.get());
    } else {
      next_sweep_ = std::min(next_sweep_, next);
    }
  }
  for (Import* import : due) SweepOne(import, now);
}

void KvImporter::SweepOne(Import* import, absl::Time now) {
  if (import->deadline > now) {
    SendOpen(import, now);
  } else if (import->state == KvImportState::kDraining) {
    import->deadline = absl::InfiniteFuture();  // They end with the peer.
    transport_->ClosePeer(import->peer);
  } else {
    Fail(import, absl::UnavailableError("nothing came in time"), true, now);
  }
}

absl::Status KvImporter::Validate(const KvImportRequest& request) const {
  const KvHandle& handle = request.handle;
  if (handle.fingerprint != options_->fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrCat("kv_handle.fingerprint: ", handle.fingerprint,
                     ", ours is ", options_->fingerprint));
  }
  if (handle.block_bytes != pool_->block_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_handle.pool.block_bytes: ", handle.block_bytes,
                     ", ours are ", pool_->block_bytes()));
  }
  if (handle.pool_blocks > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError("kv_handle.pool.num_blocks: too large");
  }
  absl::flat_hash_set<BlockId> seen;
  for (const KvBlockRef& ref : handle.blocks) {
    if (ref.block.value() >= handle.pool_blocks) {
      return absl::InvalidArgumentError("kv_handle.blocks: not in its pool");
    }
    if (!seen.insert(ref.block).second) {
      return absl::InvalidArgumentError("kv_handle.blocks: one is there twice");
    }
  }
  if (request.first_block > handle.blocks.size() ||
      request.blocks.size() != handle.blocks.size() - request.first_block) {
    return absl::InvalidArgumentError("kv_handle.blocks: unexpected count");
  }
  return absl::OkStatus();
}

absl::Status KvImporter::Prepare(Import* import) {
  const KvHandle& handle = import->request.handle;
  ASSIGN_OR_RETURN(import->peer, transport_->Connect(handle.worker_address));
  if (!handle.remote_key.empty()) {
    import->remote = transport_->MapRemote(
        import->peer,
        {.host_id = handle.host_id,
         .remote_key = handle.remote_key,
         .base_address = handle.base_address,
         .bytes = KvPool::RegionBytes(static_cast<uint32_t>(handle.pool_blocks),
                                      handle.block_bytes)});
  }
  import->token = random_();
  if (import->remote != nullptr) return absl::OkStatus();
  if (!transport_->sends_blocks()) {
    if (handle.host_id == transport_->host_id()) {
      return absl::UnavailableError("the exporter's memory cannot be mapped");
    }
    return absl::FailedPreconditionError(
        "the exporter is not on this host, and only mapping is allowed");
  }
  // Tags are never reused, so a late block of another import matches nothing.
  import->first_tag = next_tag_;
  next_tag_ += handle.blocks.size();
  for (uint32_t i = 0; i < import->request.blocks.size(); ++i) {
    const TransferId receive = transport_->PostReceive(
        import->first_tag + import->request.first_block + i,
        {pool_->block(import->request.blocks[i]), pool_->block_bytes()});
    import->receives.emplace(receive, i);
    receives_.emplace(receive, import->request.id);
  }
  return absl::OkStatus();
}

KvImporter::Import* KvImporter::Find(ImportId id) {
  const auto it = imports_.find(id);
  return it == imports_.end() ? nullptr : it->second.get();
}

KvImporter::Import* KvImporter::Hear(uint64_t token, absl::Time now) {
  const auto it = tokens_.find(token);
  if (it == tokens_.end()) return nullptr;
  Import* import = Find(it->second);
  CHECK(import != nullptr);
  if (import->state == KvImportState::kDraining) return nullptr;
  if (import->state == KvImportState::kOpening) {
    MoveTo(import, KvImportState::kMoving);
  }
  // Words are progress only while no block is due.
  if (import->request.first_block + import->received >= import->readable) {
    import->deadline = now + options_->import_timeout;
  }
  return import;
}

void KvImporter::MoveTo(Import* import, KvImportState state) {
  CHECK(IsLegalTransition(import->state, state))
      << "import " << import->request.id;
  import->state = state;
}

void KvImporter::SendOpen(Import* import, absl::Time now) {
  const KvHandle& handle = import->request.handle;
  KvOpenMessage open;
  open.export_id = handle.export_id;
  open.token = import->token;
  open.mode =
      import->remote != nullptr ? KvTransferMode::kPull : KvTransferMode::kPush;
  open.first_block = import->request.first_block;
  open.num_blocks = static_cast<uint32_t>(handle.blocks.size());
  open.block_bytes = handle.block_bytes;
  open.first_tag = import->first_tag;
  open.max_in_flight = options_->max_blocks_in_flight;
  open.checksums = options_->checksums;
  open.address = transport_->address();
  transport_->SendMessage(import->peer, EncodeKvTransferMessage(open));
  import->next_refresh = now + options_->refresh_interval;
  next_sweep_ = std::min(next_sweep_, import->next_refresh);
}

void KvImporter::MaybeCopyable(Import* import) {
  if (import->remote == nullptr || import->copyable) return;
  if (import->request.first_block + import->copied >= import->readable) return;
  import->copyable = true;
  copyable_.push_back(import->request.id);
}

void KvImporter::Arrive(Import* import, uint32_t block) {
  MaybeDamage(pool_->block(import->request.blocks[block]),
              pool_->block_bytes());
  import->arrived[block] = true;
  ++import->received;
}

bool KvImporter::Check(Import* import) {
  const KvImportRequest& request = import->request;
  uint32_t& i = import->checked;
  for (; i < request.blocks.size() && import->arrived[i]; ++i) {
    if (!options_->checksums) continue;
    if (i >= import->checksums.size()) break;  // Sent before it was announced.
    const uint32_t index = request.first_block + i;
    const KvBlockIdentity identity = {
        .index = index, .generation = request.handle.blocks[index].generation};
    if (KvBlockChecksum(pool_->block(request.blocks[i]), pool_->block_bytes(),
                        identity) != import->checksums[i]) {
      return false;
    }
  }
  return true;
}

void KvImporter::MaybeFinish(Import* import, absl::Time now) {
  const KvImportRequest& request = import->request;
  if (!Check(import)) {
    ++num_damaged_blocks_;
    LOG(WARNING) << "import " << request.id << " block "
                 << request.first_block + import->checked << " of "
                 << request.handle.blocks.size() << " arrived damaged";
    return Fail(import, absl::AbortedError("a KV block arrived damaged"), true,
                now);
  }
  if (import->checked != request.blocks.size() || !import->tail.has_value()) {
    return;
  }
  ReachFaultPoint(FaultPoint::kKvImportDone);
  const std::string done = EncodeKvTransferMessage(
      KvDoneMessage{request.handle.export_id, import->token});
  transport_->SendMessage(import->peer, done);
  if (ReachFaultPoint(FaultPoint::kKvImportDoneTwice)) {
    transport_->SendMessage(import->peer, done);
  }
  Report(import, now);
}

void KvImporter::Fail(Import* import, absl::Status outcome, bool tell_peer,
                      absl::Time now) {
  if (tell_peer) {
    transport_->SendMessage(
        import->peer, EncodeKvTransferMessage(KvCancelMessage{
                          import->request.handle.export_id, import->token}));
  }
  import->outcome = std::move(outcome);
  if (import->receives.empty()) {
    Report(import, now);
    return;
  }
  MoveTo(import, KvImportState::kDraining);
  for (const auto& [receive, block] : import->receives) {
    transport_->Cancel(receive);
  }
  import->next_refresh = absl::InfiniteFuture();
  import->deadline = now + options_->drain_timeout;
  next_sweep_ = std::min(next_sweep_, import->deadline);
}

void KvImporter::Report(Import* import, absl::Time now) {
  MoveTo(import, KvImportState::kEnded);
  const ImportId id = import->request.id;
  VLOG(1) << "import " << id << " ended " << import->outcome.ToString();
  KvImportEnded ended = Ended(id, std::move(import->outcome));
  if (ended.status.ok()) ended.tail = *std::move(import->tail);
  ended.bytes = import->received * pool_->block_bytes();
  ended.duration = now - import->start;
  ended.one_sided = import->remote != nullptr;
  ended_->push_back(std::move(ended));
  tokens_.erase(import->token);
  imports_.erase(id);
}

}  // namespace baton
