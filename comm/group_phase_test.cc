#include "comm/group_phase.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace baton {
namespace {

TEST(GroupPhaseTest, ExactlyTheseTransitionsAreLegal) {
  using enum GroupPhase;
  const std::set<std::pair<GroupPhase, GroupPhase>> legal = {
      {kOutside, kPausing},    {kOutside, kConnecting},
      {kOutside, kGathering},  {kPausing, kConnecting},
      {kConnecting, kPausing}, {kConnecting, kGathering},
      {kGathering, kPausing},  {kGathering, kLinking},
      {kGathering, kRefused},  {kLinking, kReady},
      {kLinking, kRunning},    {kLinking, kOutside},
      {kReady, kRunning},      {kReady, kOutside},
      {kRunning, kOutside}};
  for (int from = 0; from <= static_cast<int>(kRefused); ++from) {
    for (int to = 0; to <= static_cast<int>(kRefused); ++to) {
      const std::pair edge(static_cast<GroupPhase>(from),
                           static_cast<GroupPhase>(to));
      EXPECT_EQ(IsLegalTransition(edge.first, edge.second),
                legal.contains(edge))
          << from << " to " << to;
    }
  }
}

}  // namespace
}  // namespace baton
