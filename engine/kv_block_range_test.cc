#include "engine/kv_block_range.h"

#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(KvBlockRangeTest, ExactlyTheseTransitionsAreLegal) {
  using enum KvRangeState;
  const std::set<std::pair<KvRangeState, KvRangeState>> legal = {
      {kFree, kReserved},         {kReserved, kFilling},
      {kReserved, kExported},     {kReserved, kImporting},
      {kReserved, kQuarantined},  {kReserved, kFree},
      {kFilling, kOwned},         {kFilling, kQuarantined},
      {kFilling, kFree},          {kExported, kQuarantined},
      {kExported, kFree},         {kImporting, kOwned},
      {kImporting, kQuarantined}, {kImporting, kFree},
      {kOwned, kQuarantined},     {kOwned, kFree},
      {kQuarantined, kFree},
  };
  for (int from = 0; from < kNumKvRangeStates; ++from) {
    for (int to = 0; to < kNumKvRangeStates; ++to) {
      const std::pair edge(static_cast<KvRangeState>(from),
                           static_cast<KvRangeState>(to));
      EXPECT_EQ(IsLegalTransition(edge.first, edge.second),
                legal.contains(edge))
          << from << " to " << to;
    }
  }
}

}  // namespace
}  // namespace baton
