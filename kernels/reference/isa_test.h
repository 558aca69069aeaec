// A test that runs at each vector width, skipped where the CPU lacks it.
#ifndef BATON_KERNELS_REFERENCE_ISA_TEST_H_
#define BATON_KERNELS_REFERENCE_ISA_TEST_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu_context.h"

namespace baton {

class IsaTest : public testing::TestWithParam<VectorIsa> {
 protected:
  void SetUp() override {
    const std::vector<VectorIsa> isas = SupportedVectorIsas();
    if (std::find(isas.begin(), isas.end(), GetParam()) == isas.end()) {
      GTEST_SKIP() << "this CPU lacks " << VectorIsaName(GetParam());
    }
  }

  CpuContext context() const { return {.isa = GetParam(), .threads = nullptr}; }
};

#define INSTANTIATE_ISA_TEST(suite)                        \
  INSTANTIATE_TEST_SUITE_P(                                \
      Isa, suite,                                          \
      testing::Values(VectorIsa::kArray, VectorIsa::kAvx2, \
                      VectorIsa::kAvx512),                 \
      [](const testing::TestParamInfo<VectorIsa>& i) {     \
        return std::string(VectorIsaName(i.param));        \
      })

// Float bits, so that a comparison tells zeros apart and finds NaNs equal.
inline std::vector<uint32_t> BitsOfValues(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    bits[i] = std::bit_cast<uint32_t>(values[i]);
  }
  return bits;
}

}  // namespace baton

#endif  // BATON_KERNELS_REFERENCE_ISA_TEST_H_
