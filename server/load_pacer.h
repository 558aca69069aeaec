// When one watcher of a load is told it.
#ifndef BATON_SERVER_LOAD_PACER_H_
#define BATON_SERVER_LOAD_PACER_H_

#include <cstdint>

#include "absl/time/time.h"

namespace baton {

// A load that has not changed is told again after this: the worker lives.
inline constexpr absl::Duration kSignOfLifeInterval = absl::Milliseconds(500);

// Pure. Thread-compatible.
class LoadPacer final {
 public:
  explicit LoadPacer(absl::Duration min_interval)
      : min_interval_(min_interval) {}

  absl::Duration min_interval() const { return min_interval_; }
  // Whether the load, in its `version`th state, is to be told now; then it was.
  bool Tell(absl::Time now, uint64_t version) {
    if (now < NextTurn(version)) return false;
    told_ = now;
    told_version_ = version;
    return true;
  }
  // If it stays at this version.
  absl::Time NextTurn(uint64_t version) const {
    return told_ +
           (version == told_version_ ? kSignOfLifeInterval : min_interval_);
  }

 private:
  absl::Duration min_interval_;
  absl::Time told_ = absl::InfinitePast();
  uint64_t told_version_ = 0;
};

}  // namespace baton

#endif  // BATON_SERVER_LOAD_PACER_H_
