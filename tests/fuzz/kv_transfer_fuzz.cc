// A transfer agent with an export and an import under way, that hears anything
// from a stranger: neither is touched, and both come to their right end.
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/logging.h"
#include "comm/kv_transfer_message.h"
#include "comm/loopback_transport.h"
#include "comm/testing/kv_transfer_side.h"
#include "tests/fakes/simulated_clock.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton {
namespace {

constexpr uint32_t kBlocks = 4;
constexpr size_t kBlockBytes = 64;
constexpr ExportId kExport(3);
constexpr ImportId kImport(5);
constexpr int kPolls = 1000;

std::vector<BlockId> AllBlocks() {
  std::vector<BlockId> blocks;
  for (uint32_t i = 0; i < kBlocks; ++i) blocks.push_back(BlockId(i));
  return blocks;
}

KvTransferAgentOptions Options() {
  KvTransferAgentOptions options;
  options.token_seed = 1;
  return options;
}

std::unique_ptr<KvTransferSide> MakeSide(LoopbackNetwork* network,
                                         const std::string& address,
                                         const Clock* clock) {
  return std::make_unique<KvTransferSide>(network->CreateEndpoint(address, {}),
                                          kBlocks, kBlockBytes, clock,
                                          Options());
}

// [length u8][bytes]...
std::vector<std::string> Split(std::string_view bytes) {
  std::vector<std::string> messages;
  while (!bytes.empty()) {
    const size_t length = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    messages.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(std::min(length, bytes.size()));
  }
  return messages;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  std::string all;
  for (const KvTransferMessage& message : std::vector<KvTransferMessage>{
           KvOpenMessage{.export_id = kExport,
         .token = 7,
         .num_blocks = kBlocks,
         .block_bytes = kBlockBytes,
         .max_in_flight = 2,
         .address = "stranger"},
           KvReadableMessage{.token = 7, .num_blocks = 2},
           KvTailMessage{.token = 7, .tail = "tail"},
           KvDoneMessage{.export_id = kExport, .token = 7},
           KvCancelMessage{.export_id = kExport, .token = 7},
           KvEndedMessage{.token = 7}}) {
    const std::string bytes = EncodeKvTransferMessage(message);
    CHECK_LT(bytes.size(), 256u);
    all += static_cast<char>(bytes.size());
    all += bytes;
  }
  return {all};
}

void FuzzOne(std::string_view bytes) {
  SimulatedClock clock;
  LoopbackNetwork network;
  const auto prefill = MakeSide(&network, "prefill", &clock);
  const auto decode = MakeSide(&network, "decode", &clock);
  const auto stranger = network.CreateEndpoint("stranger", {});
  for (uint32_t i = 0; i < kBlocks; ++i) prefill->Fill(BlockId(i), i);
  const KvHandle handle =
      prefill->agent().StartExport(kExport, AllBlocks(), 10);
  decode->agent().StartImport(kImport, handle, 0, AllBlocks());
  // The importer has opened the export, so a stranger comes too late for it.
  for (int i = 0; i < 4; ++i) {
    decode->agent().Poll();
    prefill->agent().Poll();
  }
  for (const char* victim : {"prefill", "decode"}) {
    const auto peer = stranger->Connect(victim);
    CHECK_OK(peer.status());
    for (const std::string& message : Split(bytes)) {
      stranger->SendMessage(*peer, message);
    }
  }
  for (int i = 0; i < 8; ++i) {
    decode->agent().Poll();
    prefill->agent().Poll();
  }
  prefill->agent().PublishReadable(kExport, kBlocks);
  prefill->agent().PublishTail(kExport, "end");
  for (int i = 0; i < kPolls && prefill->exports().empty(); ++i) {
    prefill->agent().Poll();
    decode->agent().Poll();
  }
  CHECK_OK(prefill->exports().at(kExport).status);
  CHECK_OK(decode->imports().at(kImport).status);
  CHECK_EQ(decode->imports().at(kImport).tail, "end");
  for (uint32_t i = 0; i < kBlocks; ++i) CHECK(decode->Holds(BlockId(i), i));
}

}  // namespace baton
