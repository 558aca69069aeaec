// Things whose last reference went while launched steps may still use them.
#ifndef BATON_ENGINE_DEFERRED_RELEASE_H_
#define BATON_ENGINE_DEFERRED_RELEASE_H_

#include <cstddef>
#include <deque>
#include <utility>

#include "base/logging.h"
#include "engine/ids.h"

namespace baton {

// Owned by the engine. Steps end in the order in which they were launched, so
// an item is free for good once the newest step launched before it was given up
// is done.
template <typename T>
class DeferredRelease {
 public:
  void Add(StepId newest_launched, T item) {
    CHECK(items_.empty() || items_.back().tag <= newest_launched);
    items_.push_back({newest_launched, std::move(item)});
  }

  // Gives every item whose steps are done to `release`, oldest first.
  template <typename Release>
  void Collect(StepId newest_done, Release release) {
    while (!items_.empty() && items_.front().tag <= newest_done) {
      T item = std::move(items_.front().item);
      items_.pop_front();
      release(std::move(item));
    }
  }

  size_t size() const { return items_.size(); }

 private:
  struct Tagged {
    StepId tag;
    T item;
  };
  std::deque<Tagged> items_;
};

}  // namespace baton

#endif  // BATON_ENGINE_DEFERRED_RELEASE_H_
