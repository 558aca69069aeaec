#include "comm/kv_exporter.h"

#include <algorithm>
#include <utility>

#include "base/fault_point.h"
#include "base/logging.h"
#include "comm/kv_checksum.h"

namespace baton {
namespace {

// Between two looks at what else is to be done.
constexpr uint32_t kSumsOfATurn = 16;

}  // namespace

KvExporter::KvExporter(const KvTransferAgentOptions* options,
                       Transport* transport, const KvPool* pool,
                       std::vector<KvTransferEvent>* ended)
    : options_(options), transport_(transport), pool_(pool), ended_(ended) {}

void KvExporter::Start(ExportId id, std::vector<BlockId> blocks,
                       absl::Time now) {
  auto e = std::make_unique<Export>();
  e->id = id;
  e->blocks = std::move(blocks);
  Progress(e.get(), now);
  CHECK(exports_.emplace(id, std::move(e)).second) << "export " << id;
}

void KvExporter::PublishReadable(ExportId id, uint32_t num_blocks,
                                 absl::Time now) {
  Export* e = Find(id);
  if (e == nullptr || e->state == KvExportState::kDraining) return;
  CHECK_LE(num_blocks, e->blocks.size()) << "export " << id;
  if (num_blocks <= e->readable) return;
  e->readable = num_blocks;
  Progress(e, now);
  if (e->state != KvExportState::kOpened) return;
  ReachFaultPoint(FaultPoint::kKvExportBlocks);
  if (e->wants_checksums) {
    MaybeSummable(e);
  } else {
    Announce(e);
  }
  SendBlocks(e);
}

void KvExporter::PublishTail(ExportId id, std::string tail, absl::Time now) {
  Export* e = Find(id);
  if (e == nullptr || e->state == KvExportState::kDraining) return;
  CHECK(!e->tail.has_value()) << "export " << id;
  e->tail = std::move(tail);
  Progress(e, now);
  ReachFaultPoint(FaultPoint::kKvExportTail);
  if (e->state == KvExportState::kOpened) SendState(e, now);
}

void KvExporter::End(ExportId id, absl::Time now) {
  Export* e = Find(id);
  if (e == nullptr || e->state == KvExportState::kDraining) return;
  Close(e, absl::CancelledError("ended by its owner"), true, now);
}

bool KvExporter::OnMessage(const KvOpenMessage& message, absl::Time now) {
  Export* e = Find(message.export_id);
  if (e != nullptr && e == FindOpened(message.export_id, message.token)) {
    Progress(e, now);  // Repeated: the importer lives, and may have missed us.
    SendState(e, now);
    return true;
  }
  if (e == nullptr || e->state != KvExportState::kOpenable ||
      !Fits(*e, message)) {
    Refuse(message);
    return false;
  }
  const absl::StatusOr<PeerId> peer = transport_->Connect(message.address);
  if (!peer.ok()) return false;
  e->peer = *peer;
  e->token = message.token;
  e->mode = message.mode;
  e->first_block = e->next_block = message.first_block;
  e->wants_checksums = message.checksums;
  e->first_tag = message.first_tag;
  e->max_in_flight =
      std::min(message.max_in_flight, options_->max_blocks_in_flight);
  MoveTo(e, KvExportState::kOpened);
  ReachFaultPoint(FaultPoint::kKvExportOpened);
  Progress(e, now);
  SendState(e, now);
  SendBlocks(e);
  MaybeSummable(e);
  return true;
}

bool KvExporter::OnMessage(const KvDoneMessage& message, absl::Time now) {
  Export* e = FindOpened(message.export_id, message.token);
  if (e == nullptr) return false;
  // Nobody can have what was not published.
  if (e->readable != e->blocks.size() || !e->tail.has_value()) return false;
  if (ReachFaultPoint(FaultPoint::kKvExportDone)) return false;
  Close(e, absl::OkStatus(), false, now);
  return true;
}

bool KvExporter::OnMessage(const KvCancelMessage& message, absl::Time now) {
  Export* e = FindOpened(message.export_id, message.token);
  if (e == nullptr) return false;
  Close(e, absl::CancelledError("the importer gave up"), false, now);
  return true;
}

bool KvExporter::OnTransferDone(const TransferDone& event, absl::Time now) {
  const auto it = sends_.find(event.id);
  if (it == sends_.end()) return false;
  Export* e = Find(it->second);
  sends_.erase(it);
  CHECK(e != nullptr && e->in_flight > 0);
  --e->in_flight;
  if (e->state == KvExportState::kDraining) {
    if (e->in_flight == 0) Report(e);
  } else if (event.status.ok()) {  // Else the peer's failure follows.
    Progress(e, now);
    SendBlocks(e);
  }
  return true;
}

void KvExporter::OnPeerFailed(const PeerFailed& event, absl::Time now) {
  std::vector<Export*> theirs;
  for (const auto& [id, e] : exports_) {
    if (e->state == KvExportState::kOpened && e->peer == event.peer) {
      theirs.push_back(e.get());
    }
  }
  for (Export* e : theirs) {
    Close(e, absl::UnavailableError("the importer is gone"), false, now);
  }
}

bool KvExporter::SumSome() {
  if (summable_.empty()) return false;
  Export* e = Find(summable_.front());
  summable_.pop_front();
  // One that ended meanwhile leaves its turn to nobody; the caller comes again.
  if (e == nullptr || e->state != KvExportState::kOpened) return true;
  e->summable = false;
  for (uint32_t n = 0; n < kSumsOfATurn && Announced(*e) < e->readable; ++n) {
    const uint32_t i = Announced(*e);
    e->checksums.push_back(KvBlockChecksum(
        pool_->block(e->blocks[i]), pool_->block_bytes(),
        {.index = i, .generation = pool_->generation(e->blocks[i])}));
  }
  Announce(e);
  MaybeSummable(e);
  return true;
}

void KvExporter::Sweep(absl::Time now) {
  std::vector<Export*> due;
  next_sweep_ = absl::InfiniteFuture();
  for (const auto& [id, e] : exports_) {
    const absl::Time next = std::min(e->deadline, e->next_refresh);
    if (next <= now) {
      due.push_back(e.get());
    } else {
      next_sweep_ = std::min(next_sweep_, next);
    }
  }
  for (Export* e : due) SweepOne(e, now);
}

void KvExporter::SweepOne(Export* e, absl::Time now) {
  if (e->deadline > now) {
    SendState(e, now);
  } else if (e->state == KvExportState::kDraining) {
    e->deadline = absl::InfiniteFuture();  // Its sends end with the peer.
    transport_->ClosePeer(e->peer);
  } else {
    Close(e, absl::DeadlineExceededError("the lease ran out"), true, now);
  }
}

KvExporter::Export* KvExporter::Find(ExportId id) {
  const auto it = exports_.find(id);
  return it == exports_.end() ? nullptr : it->second.get();
}

KvExporter::Export* KvExporter::FindOpened(ExportId id, uint64_t token) {
  Export* e = Find(id);
  if (e == nullptr || e->state != KvExportState::kOpened) return nullptr;
  return e->token == token ? e : nullptr;
}

bool KvExporter::Fits(const Export& e, const KvOpenMessage& message) const {
  if (message.num_blocks != e.blocks.size() ||
      message.first_block > message.num_blocks ||
      message.block_bytes != pool_->block_bytes()) {
    return false;
  }
  return message.mode == KvTransferMode::kPull ||
         (transport_->sends_blocks() && message.max_in_flight > 0);
}

void KvExporter::Refuse(const KvOpenMessage& message) {
  const absl::StatusOr<PeerId> peer = transport_->Connect(message.address);
  if (!peer.ok()) return;
  transport_->SendMessage(
      *peer, EncodeKvTransferMessage(KvEndedMessage{message.token}));
}

void KvExporter::MoveTo(Export* e, KvExportState state) {
  CHECK(IsLegalTransition(e->state, state)) << "export " << e->id;
  e->state = state;
}

void KvExporter::Progress(Export* e, absl::Time now) {
  e->deadline = now + options_->lease;
  next_sweep_ = std::min(next_sweep_, e->deadline);
}

uint32_t KvExporter::Announced(const Export& e) {
  if (!e.wants_checksums) return e.readable;
  return std::min(e.readable,
                  e.first_block + static_cast<uint32_t>(e.checksums.size()));
}

void KvExporter::Announce(Export* e) {
  transport_->SendMessage(e->peer, EncodeKvTransferMessage(KvReadableMessage{
                                       e->token, Announced(*e), e->checksums}));
}

void KvExporter::MaybeSummable(Export* e) {
  if (!e->wants_checksums || e->summable || Announced(*e) >= e->readable) {
    return;
  }
  e->summable = true;
  summable_.push_back(e->id);
}

void KvExporter::SendState(Export* e, absl::Time now) {
  Announce(e);
  if (e->tail.has_value()) {
    transport_->SendMessage(
        e->peer, EncodeKvTransferMessage(KvTailMessage{e->token, *e->tail}));
  }
  e->next_refresh = now + options_->refresh_interval;
  next_sweep_ = std::min(next_sweep_, e->next_refresh);
}

void KvExporter::SendBlocks(Export* e) {
  if (e->mode != KvTransferMode::kPush) return;
  while (e->next_block < e->readable && e->in_flight < e->max_in_flight) {
    const uint32_t i = e->next_block++;
    const TransferId send = transport_->PostSend(
        e->peer, e->first_tag + i,
        {pool_->block(e->blocks[i]), pool_->block_bytes()});
    sends_.emplace(send, e->id);
    ++e->in_flight;
  }
}

void KvExporter::Close(Export* e, absl::Status outcome, bool tell_peer,
                       absl::Time now) {
  if (tell_peer && e->state == KvExportState::kOpened) {
    transport_->SendMessage(e->peer,
                            EncodeKvTransferMessage(KvEndedMessage{e->token}));
  }
  e->outcome = std::move(outcome);
  if (e->in_flight == 0) {
    Report(e);
    return;
  }
  MoveTo(e, KvExportState::kDraining);
  e->next_refresh = absl::InfiniteFuture();
  e->deadline = now + options_->drain_timeout;
  next_sweep_ = std::min(next_sweep_, e->deadline);
}

void KvExporter::Report(Export* e) {
  MoveTo(e, KvExportState::kEnded);
  VLOG(1) << "export " << e->id << " ended " << e->outcome.ToString();
  ended_->push_back(KvExportEnded{e->id, std::move(e->outcome)});
  exports_.erase(e->id);
}

}  // namespace baton
