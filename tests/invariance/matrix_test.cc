// A few cells of the matrix, in which every two settings meet.
#include "tests/invariance/matrix.h"

#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(MatrixTest, TheRequestsCoverWhatTheyAreFor) {
  const Matrix matrix("models/tiny-deepseek-v3");
  uint32_t stopped = 0;
  for (size_t i = 0; i < matrix.requests().size(); ++i) {
    stopped +=
        matrix.expected()[i].token_ids.size() < matrix.requests()[i].max_tokens;
  }
  EXPECT_GE(stopped, 15u);
}

TEST(MatrixTest, AllCellsAreDifferentAndTheImpossibleOnesAreLeftOut) {
  std::set<std::string> names;
  for (const MatrixCell& cell : AllCells()) {
    EXPECT_TRUE(names.insert(cell.config().ToString()).second);
  }
  EXPECT_EQ(names.size(), 3u * 5 * (3 + 2) * 2);
}

TEST(MatrixTest, EveryPairOfSettingsGivesTheSameTokens) {
  const Matrix matrix("models/tiny-deepseek-v3");
  std::vector<CellResult> results;
  for (const MatrixCell& cell : PairwiseCells()) {
    results.push_back(matrix.Run(cell));
    EXPECT_EQ(Complaint(results.back()), "") << cell.config().ToString();
  }
  PrintMatrix(matrix, results, std::cout);
}

}  // namespace
}  // namespace baton
