// Sheds load before the limit on memory kills: new requests first, then those
// that wait, never one that runs.
#ifndef BATON_SERVER_EDGE_MEMORY_GUARD_H_
#define BATON_SERVER_EDGE_MEMORY_GUARD_H_

#include <malloc.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/edge/memory_use.h"
#include "server/edge/request_gate.h"

namespace baton {

// What a request hears that is not taken, or shed, for lack of memory.
absl::Status OutOfMemoryError();

enum class MemoryPressure { kNone, kRefuse, kShed };

struct MemoryGuardOptions {
  // Above this part of the limit new requests are refused. 0: never.
  double refuse_ratio = 0.95;
  // Above this one, half of those that wait are shed, the youngest, at each
  // look. 0: never.
  double shed_ratio = 0.98;
  // Tests play limits.
  std::function<std::optional<MemoryUse>()> read = [] {
    return ReadMemoryUse();
  };
  // Gives back what is free but kept, under pressure and once the process has
  // been idle for a while: else a peak would count as use for ever.
  std::function<void()> trim = [] { malloc_trim(0); };
  std::function<absl::Time()> now = absl::Now;
};

// What a request takes that came as so many bytes, until it runs: its ids some
// times over, and the call. Rather too much.
constexpr uint64_t RequestFootprint(uint64_t message_bytes) {
  return 32 * 1024 + 16 * message_bytes;
}

// None where no limit is known.
MemoryPressure PressureOf(const std::optional<MemoryUse>& use,
                          const MemoryGuardOptions& options);

// Decides who enters the gate. A burst may take a limit's rest between two
// looks, and what a request takes shows later than the request: so each entry
// takes its expected share of the room that the last look found. One thread,
// and those that bring requests to the gate.
class MemoryGuard {
 public:
  // Borrows gate and registry, the gate until no request comes any more.
  MemoryGuard(MemoryGuardOptions options, RequestGate* gate,
              prometheus::Registry* registry, const std::string& role);

  // `shed` ends, or is about to end, the younger half of what waits with
  // OutOfMemoryError, and says how many that are. Without it none are shed.
  void OnShed(std::function<uint64_t()> shed) { shed_ = std::move(shed); }

  // `rose` asks for a Check() soon: on a thread that brings a request. Set
  // before the first comes.
  void OnRise(std::function<void()> rose) { rose_ = std::move(rose); }

  // Looks, and acts. To be called each second or so, under pressure more often.
  // Returns the pressure.
  MemoryPressure Check() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status Admit(uint64_t message_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether the pressure rose.
  bool Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enter(MemoryPressure pressure, const std::optional<MemoryUse>& use)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const MemoryGuardOptions options_;
  RequestGate* const gate_;
  prometheus::Gauge& used_;
  prometheus::Gauge& limit_;
  prometheus::Counter& refused_;
  prometheus::Counter& shed_waiting_;
  prometheus::Counter& trims_;
  std::function<uint64_t()> shed_;
  std::function<void()> rose_;
  absl::Mutex mutex_;
  MemoryPressure pressure_ ABSL_GUARDED_BY(mutex_) = MemoryPressure::kNone;
  absl::Time looked_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Bytes below the first bound, as far as the last look knew, less what those
  // take that entered since, and what entered shortly before it.
  double room_ ABSL_GUARDED_BY(mutex_) = 0;
  double entered_ ABSL_GUARDED_BY(mutex_) = 0;  // Since that look.
  int idle_looks_ = 0;  // That found nobody inside, in a row.
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_MEMORY_GUARD_H_
