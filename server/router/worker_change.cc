#include "server/router/worker_change.h"

#include <set>
#include <string>
#include <utility>

namespace baton {
namespace {

using Key = std::pair<std::string, v1::WorkerRole>;

Key KeyOf(const WorkerAddress& where) { return {where.address, where.role}; }

}  // namespace

WorkerChange FindWorkerChange(std::span<const WorkerPool::Member> was,
                              std::span<const WorkerAddress> is) {
  std::set<Key> missing;  // Of the new list, not looked at or not there yet.
  for (const WorkerAddress& where : is) missing.insert(KeyOf(where));
  WorkerChange change;
  for (const WorkerPool::Member& member : was) {
    if (missing.erase(KeyOf(member.where)) == 0) {
      change.left.push_back(member.id);
    }
  }
  const size_t num_staying = was.size() - change.left.size();
  for (const WorkerAddress& where : is) {
    if (missing.erase(KeyOf(where)) == 0) continue;
    if (num_staying + change.joined.size() < kMaxWorkers) {
      change.joined.push_back(where);
    } else {
      ++change.num_left_out;
    }
  }
  return change;
}

}  // namespace baton
