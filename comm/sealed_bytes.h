// Bytes of another library (addresses, keys) that pass through many hands: a
// damaged or foreign one must not reach the library, which trusts them.
#ifndef BATON_COMM_SEALED_BYTES_H_
#define BATON_COMM_SEALED_BYTES_H_

#include <optional>
#include <string>
#include <string_view>

namespace baton {

//   sealed := "BATONSB1" checksum:u64 payload    checksum: FNV-1a of payload
// It finds accidents, not forgers: handles travel between our own servers.
std::string SealBytes(std::string_view payload);
// The payload, a view into `sealed`.
std::optional<std::string_view> UnsealBytes(std::string_view sealed);

}  // namespace baton

#endif  // BATON_COMM_SEALED_BYTES_H_
