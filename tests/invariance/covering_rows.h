// A small set of configurations in which every two settings meet.
#ifndef BATON_TESTS_INVARIANCE_COVERING_ROWS_H_
#define BATON_TESTS_INVARIANCE_COVERING_ROWS_H_

#include <vector>

namespace baton {

// One setting for each axis.
using AxisRow = std::vector<int>;

// Every combination of axes of these sizes.
std::vector<AxisRow> AllRows(const std::vector<int>& axis_sizes);

// Some of `rows`, in which every pair of settings of two axes occurs that
// occurs in `rows`: greedily, always the row with most that are still missing.
// REQUIRES: equally long rows of settings from 0 to 15.
std::vector<AxisRow> CoveringRows(const std::vector<AxisRow>& rows);

}  // namespace baton

#endif  // BATON_TESTS_INVARIANCE_COVERING_ROWS_H_
