// A model without weights, the same on the CPU and on the GPU.
#ifndef BATON_KERNELS_CUDA_STAND_IN_MODEL_H_
#define BATON_KERNELS_CUDA_STAND_IN_MODEL_H_

#include <cstdint>

#include "kernels/cuda/cuda_api.h"

namespace baton {

inline constexpr uint32_t kStandInBlockTokens = 64;

// The finaliser of SplitMix64.
BATON_HOST_DEVICE inline uint64_t MixBits(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// What a row leaves in the cache, of `before`: the row before it, 0 for the
// first. So a wrong block, position or token is another token for ever.
BATON_HOST_DEVICE inline uint64_t StandInRow(uint64_t before, uint32_t token,
                                             uint32_t position) {
  return MixBits(before ^ MixBits(uint64_t{position} << 32 | token));
}

// The only token that may follow the row.
BATON_HOST_DEVICE inline uint32_t StandInToken(uint64_t row,
                                               uint32_t vocab_size) {
  return static_cast<uint32_t>((MixBits(row) >> 32) * vocab_size >> 32);
}

// Right as often as `right_drafts` of 256.
BATON_HOST_DEVICE inline uint32_t StandInDraft(uint64_t row,
                                               const StandInOptions& model) {
  const uint32_t token = StandInToken(row, model.vocab_size);
  const bool right = MixBits(~row) % 256 < model.right_drafts;
  return right ? token : (token + 1) % model.vocab_size;
}

}  // namespace baton

#endif  // BATON_KERNELS_CUDA_STAND_IN_MODEL_H_
