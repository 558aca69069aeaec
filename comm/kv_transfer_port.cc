#include "comm/kv_transfer_port.h"

#include <type_traits>
#include <utility>
#include <variant>

#include "base/logging.h"

namespace baton {

KvHandle KvTransferPort::StartExport(ExportId id, std::vector<BlockId> blocks,
                                     uint32_t num_tokens) const {
  return agent_->StartExport(ToProcess(id), ToProcess(std::move(blocks)),
                             num_tokens);
}

void KvTransferPort::PublishReadable(ExportId id, uint32_t num_blocks) const {
  agent_->PublishReadable(ToProcess(id), num_blocks);
}

void KvTransferPort::PublishTail(ExportId id, std::string tail) const {
  agent_->PublishTail(ToProcess(id), std::move(tail));
}

void KvTransferPort::EndExport(ExportId id) const {
  agent_->EndExport(ToProcess(id));
}

void KvTransferPort::StartImport(ImportId id, KvHandle handle,
                                 uint32_t first_block,
                                 std::vector<BlockId> blocks) const {
  agent_->StartImport(ToProcess(id), std::move(handle), first_block,
                      ToProcess(std::move(blocks)));
}

void KvTransferPort::CancelImport(ImportId id) const {
  agent_->CancelImport(ToProcess(id));
}

uint32_t KvTransferPort::LocalRankOf(const KvTransferEvent& event) {
  return std::visit(
      [](const auto& ended) {
        return static_cast<uint32_t>(ended.id.value() >> kIdBits);
      },
      event);
}

KvTransferEvent KvTransferPort::ToRank(KvTransferEvent event) {
  std::visit(
      [](auto& ended) {
        using Id = std::remove_cvref_t<decltype(ended.id)>;
        ended.id = Id(ended.id.value() & ((uint64_t{1} << kIdBits) - 1));
      },
      event);
  return event;
}

template <typename Id>
Id KvTransferPort::ToProcess(Id id) const {
  CHECK_EQ(id.value() >> kIdBits, 0u);
  return Id(uint64_t{local_rank_} << kIdBits | id.value());
}

std::vector<BlockId> KvTransferPort::ToProcess(
    std::vector<BlockId> blocks) const {
  for (BlockId& block : blocks) {
    block = BlockId(first_block_.value() + block.value());
  }
  return blocks;
}

}  // namespace baton
