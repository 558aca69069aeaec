#include "bench/statistics.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/logging.h"

namespace baton {

double Quantile(std::vector<double> values, double part) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(part * last)];
}

double Mean(const std::vector<double>& values) {
  CHECK(!values.empty());
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(values.size());
}

}  // namespace baton
