// A KvHandle as one line of hexadecimal text, for pipes between test processes.
#ifndef BATON_COMM_TESTING_KV_HANDLE_TEXT_H_
#define BATON_COMM_TESTING_KV_HANDLE_TEXT_H_

#include <string>

#include "absl/strings/escaping.h"
#include "base/logging.h"
#include "comm/kv_transfer.h"
#include "comm/wire.h"

namespace baton {

inline std::string KvHandleToText(const KvHandle& handle) {
  WireWriter out;
  out.Bytes(handle.fingerprint)
      .Int(handle.export_id.value())
      .Bytes(handle.worker_address)
      .Bytes(handle.remote_key)
      .Int(handle.base_address)
      .Bytes(handle.host_id)
      .Int(handle.pool_blocks)
      .Int(handle.block_bytes)
      .Int(handle.num_tokens)
      .Int(static_cast<uint32_t>(handle.blocks.size()));
  for (const KvBlockRef& ref : handle.blocks) {
    out.Int(ref.block.value()).Int(ref.generation);
  }
  return absl::BytesToHexString(out.Take());
}

inline KvHandle KvHandleFromText(const std::string& text) {
  const std::string bytes = absl::HexStringToBytes(text);
  WireReader in(bytes);
  KvHandle handle;
  handle.fingerprint = in.Bytes();
  handle.export_id = ExportId(in.Int<uint64_t>());
  handle.worker_address = in.Bytes();
  handle.remote_key = in.Bytes();
  handle.base_address = in.Int<uint64_t>();
  handle.host_id = in.Bytes();
  handle.pool_blocks = in.Int<uint64_t>();
  handle.block_bytes = in.Int<uint64_t>();
  handle.num_tokens = in.Int<uint32_t>();
  handle.blocks.resize(in.Int<uint32_t>());
  for (KvBlockRef& ref : handle.blocks) {
    ref.block = BlockId(in.Int<uint32_t>());
    ref.generation = in.Int<uint64_t>();
  }
  CHECK(in.done());
  return handle;
}

}  // namespace baton

#endif  // BATON_COMM_TESTING_KV_HANDLE_TEXT_H_
