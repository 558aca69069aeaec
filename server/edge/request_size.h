// How large a request is before anybody has looked into it.
#ifndef BATON_SERVER_EDGE_REQUEST_SIZE_H_
#define BATON_SERVER_EDGE_REQUEST_SIZE_H_

#include <cstdint>

namespace baton {

// One with more is refused for it.
inline constexpr uint32_t kMaxSamples = 128;

// As it came, not checked yet.
struct RequestSize {
  uint64_t message_bytes = 0;
  uint32_t num_samples = 1;
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_REQUEST_SIZE_H_
