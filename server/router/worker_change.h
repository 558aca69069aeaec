// What a new list of workers changes.
#ifndef BATON_SERVER_ROUTER_WORKER_CHANGE_H_
#define BATON_SERVER_ROUTER_WORKER_CHANGE_H_

#include <cstddef>
#include <span>
#include <vector>

#include "server/router/worker_pool.h"
#include "server/router/worker_state.h"

namespace baton {

struct WorkerChange {
  std::vector<WorkerId> left;
  std::vector<WorkerAddress> joined;  // In the list's order, each once.
  // Would have joined, if there were not kMaxWorkers already.
  size_t num_left_out = 0;
};

// Pure. A worker is its address and its role: with another one it leaves and
// joins.
WorkerChange FindWorkerChange(std::span<const WorkerPool::Member> was,
                              std::span<const WorkerAddress> is);

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_WORKER_CHANGE_H_
