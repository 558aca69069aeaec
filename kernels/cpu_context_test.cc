#include "kernels/cpu_context.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(CpuContextTest, EveryCpuRunsTheArrayAndWidthsAscend) {
  const std::vector<VectorIsa> isas = SupportedVectorIsas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), VectorIsa::kArray);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
}

TEST(CpuContextTest, NamesAreThoseOfTheFlag) {
  EXPECT_EQ(VectorIsaName(VectorIsa::kArray), "array");
  EXPECT_EQ(VectorIsaName(VectorIsa::kAvx2), "avx2");
  EXPECT_EQ(VectorIsaName(VectorIsa::kAvx512), "avx512");
}

}  // namespace
}  // namespace baton
