#include "comm/kv_transfer_agent.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "base/logging.h"
#include "base/mpsc_queue.h"
#include "comm/kv_exporter.h"
#include "comm/kv_importer.h"
#include "comm/kv_transfer_message.h"
#include "comm/transport.h"

namespace baton {

// Commands and events in, into the two halves; ended transfers out.
class KvTransferAgent::Core {
 public:
  using Command = absl::AnyInvocable<void(absl::Time)>;

  Core(KvTransferAgentOptions options, Transport* transport, const KvPool* pool,
       const Clock* clock, std::function<void(KvTransferEvent)> on_event)
      : options_(std::move(options)),
        transport_(transport),
        pool_(pool),
        clock_(clock),
        on_event_(std::move(on_event)),
        exporter_(&options_, transport, pool, &ended_),
        importer_(&options_, transport, pool, &ended_) {}

  // Thread-safe.
  void Queue(Command command) {
    commands_.Push(std::move(command));
    transport_->Wake();
  }
  KvHandle MakeHandle(ExportId id, const std::vector<BlockId>& blocks,
                      uint32_t num_tokens) const;
  void CheckInPool(const std::vector<BlockId>& blocks) const {
    for (BlockId block : blocks) CHECK_LT(block, BlockId(pool_->num_blocks()));
  }

  KvExporter& exporter() { return exporter_; }
  KvImporter& importer() { return importer_; }
  Transport* transport() { return transport_; }

  bool Poll();
  void Wait(absl::Duration timeout);
  KvTransferCounters counters() const {
    return {.malformed_messages = malformed_messages_.load(),
            .ignored_messages = ignored_messages_.load(),
            .damaged_blocks = damaged_blocks_.load()};
  }

 private:
  void Handle(const MessageReceived& event, absl::Time now);
  void Handle(const PeerFailed& event, absl::Time now);
  void Handle(const TransferDone& event, absl::Time now);
  bool Deliver(const KvTransferMessage& message, absl::Time now);

  const KvTransferAgentOptions options_;
  Transport* const transport_;
  const KvPool* const pool_;
  const Clock* const clock_;
  const std::function<void(KvTransferEvent)> on_event_;

  MpscQueue<Command> commands_;
  std::atomic<uint64_t> malformed_messages_ = 0;
  std::atomic<uint64_t> ignored_messages_ = 0;
  std::atomic<uint64_t> damaged_blocks_ = 0;

  // The agent's thread only.
  std::vector<KvTransferEvent> ended_;
  KvExporter exporter_;
  KvImporter importer_;
  std::vector<Command> drained_;
  std::vector<TransportEvent> events_;
};

bool KvTransferAgent::Core::Poll() {
  // A peer can only name an export whose Start was queued before: so first what
  // peers say, then the queue, then look at what they said.
  events_.clear();
  transport_->Poll(&events_);
  commands_.Drain(&drained_);
  const absl::Time now = clock_->Now();
  for (Command& command : drained_) command(now);
  for (const TransportEvent& event : events_) {
    std::visit([&](const auto& e) { Handle(e, now); }, event);
  }
  const bool copied = importer_.CopySome(now);
  const bool summed = exporter_.SumSome();
  if (now >= exporter_.next_sweep()) exporter_.Sweep(now);
  if (now >= importer_.next_sweep()) importer_.Sweep(now);

  damaged_blocks_.store(importer_.num_damaged_blocks());

  const bool worked = copied || summed || !events_.empty() ||
                      !drained_.empty() || !ended_.empty();
  std::vector<KvTransferEvent> ended;
  ended.swap(ended_);
  for (KvTransferEvent& event : ended) on_event_(std::move(event));
  return worked;
}

void KvTransferAgent::Core::Wait(absl::Duration timeout) {
  if (importer_.has_copies() || exporter_.has_sums()) return;
  const absl::Time next =
      std::min(exporter_.next_sweep(), importer_.next_sweep());
  timeout = std::min(timeout, next - clock_->Now());
  if (timeout > absl::ZeroDuration()) transport_->Wait(timeout);
}

void KvTransferAgent::Core::Handle(const MessageReceived& event,
                                   absl::Time now) {
  const std::optional<KvTransferMessage> message =
      DecodeKvTransferMessage(event.message);
  if (!message.has_value()) {
    malformed_messages_.fetch_add(1);
  } else if (!Deliver(*message, now)) {
    ignored_messages_.fetch_add(1);
  }
}

void KvTransferAgent::Core::Handle(const PeerFailed& event, absl::Time now) {
  VLOG(1) << "kv transfer peer " << event.peer << " failed "
          << event.status.ToString();
  exporter_.OnPeerFailed(event, now);
  importer_.OnPeerFailed(event, now);
}

void KvTransferAgent::Core::Handle(const TransferDone& event, absl::Time now) {
  if (exporter_.OnTransferDone(event, now)) return;
  CHECK(importer_.OnTransferDone(event, now)) << "transfer " << event.id;
}

bool KvTransferAgent::Core::Deliver(const KvTransferMessage& message,
                                    absl::Time now) {
  return std::visit(
      [&](const auto& m) {
        if constexpr (requires { exporter_.OnMessage(m, now); }) {
          return exporter_.OnMessage(m, now);
        } else {
          return importer_.OnMessage(m, now);
        }
      },
      message);
}

KvHandle KvTransferAgent::Core::MakeHandle(ExportId id,
                                           const std::vector<BlockId>& blocks,
                                           uint32_t num_tokens) const {
  KvHandle handle;
  handle.fingerprint = options_.fingerprint;
  handle.export_id = id;
  handle.worker_address = transport_->address();
  handle.remote_key = transport_->remote_key();
  handle.base_address = reinterpret_cast<uint64_t>(pool_->region());
  handle.host_id = transport_->host_id();
  handle.pool_blocks = pool_->num_blocks();
  handle.block_bytes = pool_->block_bytes();
  handle.num_tokens = num_tokens;
  handle.blocks.reserve(blocks.size());
  for (BlockId block : blocks) {
    handle.blocks.push_back({block, pool_->generation(block)});
  }
  return handle;
}

KvTransferAgent::KvTransferAgent(KvTransferAgentOptions options,
                                 Transport* transport, const KvPool* pool,
                                 const Clock* clock,
                                 std::function<void(KvTransferEvent)> on_event)
    : core_(std::make_unique<Core>(std::move(options), transport, pool, clock,
                                   std::move(on_event))) {}

KvTransferAgent::~KvTransferAgent() = default;

KvHandle KvTransferAgent::StartExport(ExportId id, std::vector<BlockId> blocks,
                                      uint32_t num_tokens) {
  core_->CheckInPool(blocks);
  KvHandle handle = core_->MakeHandle(id, blocks, num_tokens);
  core_->Queue([this, id, blocks = std::move(blocks)](absl::Time now) mutable {
    core_->exporter().Start(id, std::move(blocks), now);
  });
  return handle;
}

void KvTransferAgent::PublishReadable(ExportId id, uint32_t num_blocks) {
  FullFence();
  core_->Queue([this, id, num_blocks](absl::Time now) {
    core_->exporter().PublishReadable(id, num_blocks, now);
  });
}

void KvTransferAgent::PublishTail(ExportId id, std::string tail) {
  CHECK_LE(tail.size(), kMaxKvTailBytes) << "export " << id;
  core_->Queue([this, id, tail = std::move(tail)](absl::Time now) mutable {
    core_->exporter().PublishTail(id, std::move(tail), now);
  });
}

void KvTransferAgent::EndExport(ExportId id) {
  core_->Queue([this, id](absl::Time now) { core_->exporter().End(id, now); });
}

void KvTransferAgent::StartImport(ImportId id, KvHandle handle,
                                  uint32_t first_block,
                                  std::vector<BlockId> blocks) {
  core_->CheckInPool(blocks);
  KvImportRequest request{id, std::move(handle), first_block,
                          std::move(blocks)};
  core_->Queue([this, request = std::move(request)](absl::Time now) mutable {
    core_->importer().Start(std::move(request), now);
  });
}

void KvTransferAgent::CancelImport(ImportId id) {
  core_->Queue(
      [this, id](absl::Time now) { core_->importer().Cancel(id, now); });
}

bool KvTransferAgent::Poll() { return core_->Poll(); }
void KvTransferAgent::Wait(absl::Duration timeout) { core_->Wait(timeout); }
void KvTransferAgent::Wake() { core_->transport()->Wake(); }
KvTransferCounters KvTransferAgent::counters() const {
  return core_->counters();
}

}  // namespace baton
