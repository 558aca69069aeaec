#include "engine/model/fp8.h"

#include <array>
#include <bit>
#include <limits>

namespace baton {
namespace {

constexpr std::array<float, 256> MakeDecodeTable() {
  std::array<float, 256> table = {};
  for (int code = 0; code < 256; ++code) {
    const int exponent = (code >> 3) & 15;
    const int mantissa = code & 7;
    // In units of 2^-9, the step of the subnormals.
    const int64_t units = exponent == 0 ? mantissa
                                        : static_cast<int64_t>(8 + mantissa)
                                              << (exponent - 1);
    float value = static_cast<float>(units) / 512;
    if ((code & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
    table[code] = (code & 0x80) != 0 ? -value : value;
  }
  return table;
}

constexpr std::array<float, 256> kDecodeTable = MakeDecodeTable();

}  // namespace

float DecodeE4m3(uint8_t code) { return kDecodeTable[code]; }

uint8_t EncodeE4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = (bits >> 24) & 0x80;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7f;
  if (magnitude >= std::bit_cast<uint32_t>(kE4m3Max)) return sign | 0x7e;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent < -6) {
    // Adding 2^14 leaves 2^-9, the step of the subnormals, as last bit. A sum
    // of 2^-6 becomes the first normal code, as it should.
    const float sum = std::bit_cast<float>(magnitude) + 16384.0f;
    return sign | (std::bit_cast<uint32_t>(sum) & 0xf);
  }
  // Keep 3 of 23 mantissa bits; a carry runs into the exponent.
  const uint32_t rounded = magnitude + 0x7ffff + ((magnitude >> 20) & 1);
  const uint32_t code = (rounded >> 20) - ((127 - 7) << 3);
  return sign | static_cast<uint8_t>(code < 0x7e ? code : 0x7e);
}

void DequantizeFp8(MatrixView<const uint8_t> codes,
                   MatrixView<const float> scales, MatrixView<float> values) {
  for (int r = 0; r < codes.rows; ++r) {
    const uint8_t* code = codes.row(r);
    const float* scale = scales.row(r / kFp8BlockSize);
    float* value = values.row(r);
    for (int c = 0; c < codes.cols; ++c) {
      value[c] = kDecodeTable[code[c]] * scale[c / kFp8BlockSize];
    }
  }
}

}  // namespace baton
