// The other process of a KV transfer, for tests:
//
//   kv_peer MODE BLOCKS BLOCK_BYTES export READABLE
//     writes a handle, publishes READABLE blocks, and with all of them the tail
//   kv_peer MODE BLOCKS BLOCK_BYTES import
//     writes "ready", reads a handle and imports it
//
// Block i is filled with seed i. Writes "ended CODE GOOD" at the end: the
// status code, and how many blocks hold what they should. Leaves when its input
// ends.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/logging.h"
#include "comm/testing/kv_handle_text.h"
#include "comm/testing/kv_transfer_side.h"
#include "comm/ucx_transport.h"

namespace baton {
namespace {

std::vector<BlockId> AllBlocks(uint32_t n) {
  std::vector<BlockId> blocks;
  for (uint32_t i = 0; i < n; ++i) blocks.push_back(BlockId(i));
  return blocks;
}

// Runs the agent until `done`, then until the input ends.
template <typename Done>
void Serve(KvTransferSide* side, Done done) {
  const auto step = [&] {
    if (!side->agent().Poll()) side->agent().Wait(absl::Milliseconds(10));
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    return poll(&input, 1, 0) == 0;
  };
  bool input_is_open = true;
  while (input_is_open && !done()) input_is_open = step();
  uint32_t good = 0;
  while (good < side->pool().num_blocks() && side->Holds(BlockId(good), good)) {
    ++good;
  }
  absl::StatusCode code = absl::StatusCode::kUnknown;
  for (const auto& [id, ended] : side->exports()) code = ended.status.code();
  for (const auto& [id, ended] : side->imports()) code = ended.status.code();
  std::printf("ended %d %u\n", static_cast<int>(code), good);
  std::fflush(stdout);
  while (input_is_open) input_is_open = step();
}

void Export(KvTransferSide* side, uint32_t readable) {
  const uint32_t n = side->pool().num_blocks();
  for (uint32_t i = 0; i < n; ++i) side->Fill(BlockId(i), i);
  const KvHandle handle =
      side->agent().StartExport(ExportId(1), AllBlocks(n), n * 64);
  side->agent().PublishReadable(ExportId(1), readable);
  if (readable == n) side->agent().PublishTail(ExportId(1), "tail");
  std::puts(KvHandleToText(handle).c_str());
  std::fflush(stdout);
  Serve(side, [side] { return !side->exports().empty(); });
}

void Import(KvTransferSide* side) {
  std::puts("ready");
  std::fflush(stdout);
  std::string line;
  std::getline(std::cin, line);
  side->agent().StartImport(ImportId(1), KvHandleFromText(line), 0,
                            AllBlocks(side->pool().num_blocks()));
  Serve(side, [side] { return !side->imports().empty(); });
}

int Main(int argc, char** argv) {
  if (argc < 5) return 2;
  const std::string mode = argv[1];
  const std::string role = argv[4];
  auto transport = UcxTransport::Create(
      {.mode = mode == "tcp" ? UcxMode::kTcp : UcxMode::kShm,
       .network_devices = "lo"});
  CHECK_OK(transport.status());
  const MonotonicClock clock;
  KvTransferSide side(*std::move(transport), std::atoi(argv[2]),
                      std::atoi(argv[3]), &clock);
  if (role == "export" && argc == 6) {
    Export(&side, std::atoi(argv[5]));
  } else if (role == "import") {
    Import(&side);
  } else {
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
