#include "base/strong_int.h"

#include <cstdint>
#include <sstream>
#include <type_traits>

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

BATON_DEFINE_STRONG_INT(BlockId, uint32_t);
BATON_DEFINE_STRONG_INT(StepId, uint8_t);

static_assert(!std::is_convertible_v<BlockId, uint32_t>);
static_assert(!std::is_convertible_v<uint32_t, BlockId>);
static_assert(!std::is_convertible_v<BlockId, StepId>);

TEST(StrongIntTest, ComparesHashesCountsAndPrints) {
  BlockId id(4);
  EXPECT_LT(id, BlockId(5));
  EXPECT_EQ(++id, BlockId(5));
  absl::flat_hash_set<BlockId> ids = {id, BlockId(5), BlockId(6)};
  EXPECT_EQ(ids.size(), 2u);
  std::ostringstream out;
  out << id << " " << StepId(65);
  EXPECT_EQ(out.str(), "5 65");
}

}  // namespace
}  // namespace baton
