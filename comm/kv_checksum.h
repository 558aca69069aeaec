// What tells a KV block that arrived from one that was damaged on its way.
#ifndef BATON_COMM_KV_CHECKSUM_H_
#define BATON_COMM_KV_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

namespace baton {

// Which block it is: its place in the handle, and its content's generation.
struct KvBlockIdentity {
  uint32_t index = 0;
  uint64_t generation = 0;
};

// 64 bits over the block's bytes and its identity, so that another block, or an
// older content, is as wrong as a damaged one. A change within one word of
// eight bytes always changes it; any other does but once in 2^64. It guards
// against accidents, not against forgery.
//
// Eight lanes take every eighth word each, in turn:
//   product := (lane xor word) * odd constant
//   lane := product xor product >> 29
// REQUIRES: `bytes` is a multiple of 64.
uint64_t KvBlockChecksum(const std::byte* block, size_t bytes,
                         KvBlockIdentity identity);

}  // namespace baton

#endif  // BATON_COMM_KV_CHECKSUM_H_
