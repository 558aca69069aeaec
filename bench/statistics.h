// Of measured values.
#ifndef BATON_BENCH_STATISTICS_H_
#define BATON_BENCH_STATISTICS_H_

#include <vector>

namespace baton {

// The value below which this part of them is. REQUIRES: not empty.
double Quantile(std::vector<double> values, double part);
double Mean(const std::vector<double>& values);  // Likewise.

}  // namespace baton

#endif  // BATON_BENCH_STATISTICS_H_
