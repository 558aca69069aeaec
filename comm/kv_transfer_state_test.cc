#include "comm/kv_transfer_state.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace baton {
namespace {

template <typename State>
using Edges = std::set<std::pair<State, State>>;

template <typename State>
void ExpectExactly(State last, const Edges<State>& legal) {
  for (int from = 0; from <= static_cast<int>(last); ++from) {
    for (int to = 0; to <= static_cast<int>(last); ++to) {
      const std::pair edge(static_cast<State>(from), static_cast<State>(to));
      EXPECT_EQ(IsLegalTransition(edge.first, edge.second),
                legal.contains(edge))
          << from << " to " << to;
    }
  }
}

TEST(KvTransferStateTest, AnExportOpensOnceAndEndsOnce) {
  using enum KvExportState;
  ExpectExactly(kEnded, Edges<KvExportState>{{kOpenable, kOpened},
                                             {kOpenable, kEnded},
                                             {kOpened, kDraining},
                                             {kOpened, kEnded},
                                             {kDraining, kEnded}});
}

TEST(KvTransferStateTest, AnImportThatDrainsNeverMovesAgain) {
  using enum KvImportState;
  ExpectExactly(kEnded, Edges<KvImportState>{{kOpening, kMoving},
                                             {kOpening, kDraining},
                                             {kOpening, kEnded},
                                             {kMoving, kDraining},
                                             {kMoving, kEnded},
                                             {kDraining, kEnded}});
}

}  // namespace
}  // namespace baton
