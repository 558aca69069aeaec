#include "tests/invariance/covering_rows.h"

#include <algorithm>
#include <cstddef>

#include "gtest/gtest.h"

namespace baton {
namespace {

// Whether some row has both settings.
bool Meet(const std::vector<AxisRow>& rows, const AxisRow& like, size_t a,
          size_t b) {
  return std::any_of(rows.begin(), rows.end(), [&](const AxisRow& row) {
    return row[a] == like[a] && row[b] == like[b];
  });
}

void ExpectCovered(const std::vector<AxisRow>& all,
                   const std::vector<AxisRow>& chosen) {
  for (const AxisRow& row : all) {
    for (size_t a = 0; a < row.size(); ++a) {
      for (size_t b = a + 1; b < row.size(); ++b) {
        ASSERT_TRUE(Meet(chosen, row, a, b)) << a << " " << b;
      }
    }
  }
}

TEST(CoveringRowsTest, AllRowsAreTheProductOfTheAxes) {
  EXPECT_EQ(
      AllRows({2, 3}),
      (std::vector<AxisRow>{{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}}));
}

TEST(CoveringRowsTest, FewRowsCoverEveryPair) {
  const std::vector<AxisRow> all = AllRows({3, 5, 3, 2, 2});
  const std::vector<AxisRow> chosen = CoveringRows(all);
  ExpectCovered(all, chosen);
  EXPECT_LE(chosen.size(), 20u);
}

TEST(CoveringRowsTest, WhatOccursInNoRowIsNotAskedFor) {
  std::vector<AxisRow> all = AllRows({3, 2, 2});
  std::erase_if(all, [](const AxisRow& row) { return row[0] == row[1]; });
  const std::vector<AxisRow> chosen = CoveringRows(all);
  ExpectCovered(all, chosen);
  for (const AxisRow& row : chosen) EXPECT_NE(row[0], row[1]);
}

}  // namespace
}  // namespace baton
