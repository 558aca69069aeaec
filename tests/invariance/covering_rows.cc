#include "tests/invariance/covering_rows.h"

#include <cstddef>
#include <utility>

#include "base/logging.h"

namespace baton {
namespace {

constexpr size_t kMaxSettings = 16;

// The pairs of a row as numbers.
std::vector<size_t> PairsOf(const AxisRow& row) {
  std::vector<size_t> pairs;
  for (size_t a = 0; a < row.size(); ++a) {
    CHECK(row[a] >= 0 && row[a] < static_cast<int>(kMaxSettings));
    for (size_t b = a + 1; b < row.size(); ++b) {
      pairs.push_back(((a * row.size() + b) * kMaxSettings + row[a]) *
                          kMaxSettings +
                      row[b]);
    }
  }
  return pairs;
}

}  // namespace

std::vector<AxisRow> AllRows(const std::vector<int>& axis_sizes) {
  std::vector<AxisRow> rows = {{}};
  for (const int size : axis_sizes) {
    std::vector<AxisRow> longer;
    for (const AxisRow& row : rows) {
      for (int setting = 0; setting < size; ++setting) {
        longer.push_back(row);
        longer.back().push_back(setting);
      }
    }
    rows = std::move(longer);
  }
  return rows;
}

std::vector<AxisRow> CoveringRows(const std::vector<AxisRow>& rows) {
  std::vector<std::vector<size_t>> pairs;
  std::vector<bool> missing;
  for (const AxisRow& row : rows) {
    pairs.push_back(PairsOf(row));
    for (const size_t pair : pairs.back()) {
      if (pair >= missing.size()) missing.resize(pair + 1);
      missing[pair] = true;
    }
  }
  std::vector<AxisRow> chosen;
  while (true) {
    size_t best = 0;
    size_t best_count = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      size_t count = 0;
      for (const size_t pair : pairs[i]) count += missing[pair];
      if (count > best_count) {
        best_count = count;
        best = i;
      }
    }
    if (best_count == 0) return chosen;
    for (const size_t pair : pairs[best]) missing[pair] = false;
    chosen.push_back(rows[best]);
  }
}

}  // namespace baton
