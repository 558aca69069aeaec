// How the launchers split work over a context's threads.
#ifndef BATON_KERNELS_CPU_PARALLEL_FOR_H_
#define BATON_KERNELS_CPU_PARALLEL_FOR_H_

#include <algorithm>

#include "kernels/cpu_context.h"
#include "kernels/thread_pool.h"

namespace baton {

inline int NumThreads(const CpuContext& context) {
  return context.threads == nullptr ? 1 : context.threads->num_threads();
}

// The items of `per_item` each that `count` makes.
inline int CeilDivide(int count, int per_item) {
  return (count + per_item - 1) / per_item;
}

// body(item) for each item in [0, num_items).
template <typename Body>
void ParallelFor(const CpuContext& context, int num_items, const Body& body) {
  if (context.threads == nullptr) {
    for (int i = 0; i < num_items; ++i) body(i);
  } else {
    context.threads->ParallelFor(num_items, body);
  }
}

// body(row) for each row, by items worth a fork: about 16,384 elements.
template <typename Body>
void ParallelForRows(const CpuContext& context, int rows, int cols,
                     const Body& body) {
  const int per_item = std::max(1, 16384 / std::max(1, cols));
  ParallelFor(context, CeilDivide(rows, per_item), [&](int item) {
    const int end = std::min(rows, (item + 1) * per_item);
    for (int r = item * per_item; r < end; ++r) body(r);
  });
}

}  // namespace baton

#endif  // BATON_KERNELS_CPU_PARALLEL_FOR_H_
