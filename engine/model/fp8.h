// DeepSeek's FP8 weights: E4M3 ("fn": no infinity, largest value 448) in blocks
// of 128 x 128 with one float32 scale each.
#ifndef BATON_ENGINE_MODEL_FP8_H_
#define BATON_ENGINE_MODEL_FP8_H_

#include <cstdint>

#include "kernels/matrix_view.h"

namespace baton {

inline constexpr int kFp8BlockSize = 128;
inline constexpr float kE4m3Max = 448;

// s eeee mmm: 2^(e-7) * 1.mmm, or 2^-6 * 0.mmm for e = 0; 0x7f and 0xff NaN.
float DecodeE4m3(uint8_t code);

// To nearest, ties to even; beyond 448 to 448 with the sign; NaN to NaN.
uint8_t EncodeE4m3(float value);

// Blocks along one dimension; the last one may be ragged.
constexpr int NumFp8Blocks(int size) {
  return (size + kFp8BlockSize - 1) / kFp8BlockSize;
}

// values[r, c] = DecodeE4m3(codes[r, c]) * scales[r / 128, c / 128], in
// float32. REQUIRES: the same shape, and one scale a block.
void DequantizeFp8(MatrixView<const uint8_t> codes,
                   MatrixView<const float> scales, MatrixView<float> values);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_FP8_H_
