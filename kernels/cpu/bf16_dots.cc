#include "kernels/cpu/bf16_dots.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/logging.h"
#include "kernels/cpu/kernel_table.h"

namespace baton {
namespace {

constexpr int kRows = 8;
constexpr int kIn = 64;
constexpr int kOut = 32;

using Products = std::array<float, kRows * kOut>;

struct Problem {
  std::array<float, kRows * kIn> x;
  std::array<uint16_t, kIn * kOut> panels;
};

Products Multiply(const Problem& problem, LinearArithmetic arithmetic) {
  Products y;
  std::array<float, kRows * kIn> rounded;
  KernelsFor(VectorIsa::kAvx512)
      .linear({.x = problem.x.data(),
               .x_stride = kIn,
               .panels = problem.panels.data(),
               .next_panels = problem.panels.data(),
               .is_bf16 = true,
               .arithmetic = arithmetic,
               .rounded = rounded.data(),
               .rows = kRows,
               .in = kIn,
               .out = kOut,
               .y = y.data(),
               .y_stride = kOut});
  return y;
}

// Finite values with exponents of [first, first + count), either sign.
uint32_t Draw(uint64_t* state, uint32_t first, uint32_t count) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  const uint32_t bits = static_cast<uint32_t>(*state >> 32);
  return (bits & 0x807fffffu) | (first + (bits >> 23 & 0xff) % count) << 23;
}

// Over values of common size, and over products about as small as denormals.
bool AgreesWithTheDefinition() {
  uint64_t state = 1;
  for (const uint32_t first : {118u, 56u, 0u}) {
    for (int round = 0; round < 8; ++round) {
      Problem problem;
      for (float& x : problem.x) {
        x = std::bit_cast<float>(Draw(&state, first, 16));
      }
      const uint32_t of_weights = first == 0 ? 112 : first;
      for (uint16_t& w : problem.panels) {
        w = static_cast<uint16_t>(Draw(&state, of_weights, 16) >> 16);
      }
      const Products native =
          Multiply(problem, LinearArithmetic::kNativeBf16Dots);
      const Products defined = Multiply(problem, LinearArithmetic::kBf16Dots);
      const auto same_bits = [](float a, float b) {
        return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
      };
      if (!std::equal(native.begin(), native.end(), defined.begin(),
                      same_bits)) {
        LOG(WARNING) << "this CPU's bf16 dot products give other bits";
        return false;
      }
    }
  }
  return true;
}

}  // namespace

bool HasNativeBf16Dots(VectorIsa isa) {
  // A property of the CPU.
  static const bool has =
      __builtin_cpu_supports("avx512bf16") && AgreesWithTheDefinition();
  return isa == VectorIsa::kAvx512 && has;
}

}  // namespace baton
