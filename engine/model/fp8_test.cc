#include "engine/model/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace baton {
namespace {

TEST(Fp8Test, DecodesTheNamedValues) {
  EXPECT_EQ(DecodeE4m3(0x00), 0.0f);
  EXPECT_TRUE(std::signbit(DecodeE4m3(0x80)));
  EXPECT_EQ(DecodeE4m3(0x01), 0x1p-9f);
  EXPECT_EQ(DecodeE4m3(0x07), 0x7p-9f);
  EXPECT_EQ(DecodeE4m3(0x08), 0x1p-6f);
  EXPECT_EQ(DecodeE4m3(0x38), 1.0f);
  EXPECT_EQ(DecodeE4m3(0xb9), -1.125f);
  EXPECT_EQ(DecodeE4m3(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(DecodeE4m3(0x7f)));
  EXPECT_TRUE(std::isnan(DecodeE4m3(0xff)));
}

TEST(Fp8Test, EveryCodeComesBack) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(EncodeE4m3(DecodeE4m3(code)), code);
  }
}

TEST(Fp8Test, RoundsToNearestTiesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = DecodeE4m3(code);
    const float high = DecodeE4m3(code + 1);
    const float middle = (low + high) / 2;  // Exact.
    EXPECT_EQ(EncodeE4m3(middle), code + (code & 1)) << code;
    EXPECT_EQ(EncodeE4m3(std::nextafter(middle, 0.0f)), code) << code;
    EXPECT_EQ(EncodeE4m3(std::nextafter(middle, high)), code + 1) << code;
    EXPECT_EQ(EncodeE4m3(-middle), 0x80 + code + (code & 1)) << code;
  }
}

TEST(Fp8Test, SaturatesAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(EncodeE4m3(449), 0x7e);
  EXPECT_EQ(EncodeE4m3(1e30f), 0x7e);
  EXPECT_EQ(EncodeE4m3(-infinity), 0xfe);
  EXPECT_EQ(EncodeE4m3(std::nanf("")), 0x7f);
  EXPECT_EQ(EncodeE4m3(1e-40f), 0x00);
}

TEST(Fp8Test, ScalesRaggedBlocksByTheirOwnScale) {
  const int rows = 130;
  const int cols = 257;
  const std::vector<uint8_t> codes(rows * cols, EncodeE4m3(2));
  const std::vector<float> scales = {1, 2, 3, 4, 5, 6};
  std::vector<float> values(rows * cols);
  EXPECT_EQ(NumFp8Blocks(rows), 2);
  EXPECT_EQ(NumFp8Blocks(cols), 3);
  DequantizeFp8(Dense(codes.data(), rows, cols), Dense(scales.data(), 2, 3),
                Dense(values.data(), rows, cols));
  const auto at = [&](int r, int c) { return values[r * cols + c]; };
  EXPECT_EQ(at(0, 0), 2);
  EXPECT_EQ(at(127, 127), 2);
  EXPECT_EQ(at(127, 128), 4);
  EXPECT_EQ(at(0, 256), 6);
  EXPECT_EQ(at(128, 0), 8);
  EXPECT_EQ(at(129, 255), 10);
  EXPECT_EQ(at(129, 256), 12);
}

}  // namespace
}  // namespace baton
