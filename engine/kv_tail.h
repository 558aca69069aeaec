// The end of a KV transfer: the tokens that the prefill side drew, and what the
// drafter goes on from.
//
//   tail   := version{u32 = 3} count{u32} width{u32} entry{count} hidden{width}
//   entry  := sample_index{u32} drawn{token} num_top{u32} top{token, num_top}
//   token  := id{u32} logprob{u32, the float's bits}
//   hidden := u32, the float's bits
//
// Little endian.
#ifndef BATON_ENGINE_KV_TAIL_H_
#define BATON_ENGINE_KV_TAIL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/sample.h"

namespace baton {

struct KvTailEntry {
  uint32_t sample_index = 0;
  SampledToken drawn = {};
  std::vector<SampledToken> top =
      {};  // Its alternatives, if any were asked for.
};

struct KvTail {
  std::vector<KvTailEntry> entries;
  // The state of the prompt's last position; [hidden_size], empty without a
  // drafter.
  std::vector<float> hidden;
};

inline constexpr uint32_t kMaxKvTailEntries = 128;

std::string EncodeKvTail(const KvTail& tail);

// DATA_LOSS for anything that EncodeKvTail does not make of at most
// kMaxKvTailEntries entries with at most kMaxTopLogprobs alternatives, all of
// tokens below `vocab_size` and finite logprobs, and `hidden_size` finite
// values.
absl::StatusOr<KvTail> DecodeKvTail(std::string_view bytes, uint32_t vocab_size,
                                    uint32_t hidden_size);

}  // namespace baton

#endif  // BATON_ENGINE_KV_TAIL_H_
