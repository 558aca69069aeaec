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
#include "server/edge/request_size.h"

namespace baton {

// What a request hears that is not taken, or shed, for lack of memory.
absl::Status OutOfMemoryError();

enum class MemoryPressure { kNone, kRefuse, kShed };

struct MemoryGuardOptions {
  // New requests are refused as far as what they may take would not stay below
  // this part of the limit. 0: never.
  double refuse_ratio = 0.95;
  // Above this one, half of those that wait are shed, the youngest, each
  // second. 0: never.
  double shed_ratio = 0.98;
  // Tests play limits.
  std::function<std::optional<MemoryUse>()> read = [] {
    return ReadMemoryUse();
  };
  // Gives back what is free but kept, where memory is short and once the
  // process has been idle for a while: else a peak would count as use for ever.
  std::function<void()> trim = [] { malloc_trim(0); };
  std::function<absl::Time()> now = absl::Now;
};

// What a request takes until it runs: the call, its ids some times over, and
// for each sample once more. Rather too much.
uint64_t RequestFootprint(const RequestSize& size);

// None where no limit is known.
MemoryPressure PressureOf(const std::optional<MemoryUse>& use,
                          const MemoryGuardOptions& options);

// Decides which requests enter the gate. A burst may take a limit's rest
// between two looks, and what a request takes shows later than the request: so
// each takes its expected share of the room that the last look found.
class MemoryGuard {
 public:
  // Borrows gate and registry. The gate asks it from now on, on any thread, for
  // as long as requests come.
  MemoryGuard(MemoryGuardOptions options, RequestGate* gate,
              prometheus::Registry* registry, const std::string& role);

  // The two below: before the first request comes.

  // `shed` ends, or is about to end, the younger half of what waits with
  // OutOfMemoryError, and says how many that are. Without it none are shed.
  void OnShed(std::function<uint64_t()> shed) { shed_ = std::move(shed); }
  // `haste` asks for a Check() soon, since somebody was refused: on any thread,
  // once until that comes.
  void OnHaste(std::function<void()> haste) { haste_ = std::move(haste); }

  // Looks, and acts. To be called each second or so, under pressure more often,
  // on one thread. Returns the pressure.
  MemoryPressure Check() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Status Admit(const RequestSize& size) ABSL_LOCKS_EXCLUDED(mutex_);
  std::optional<MemoryUse> Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<MemoryUse> LookAndTrim() ABSL_LOCKS_EXCLUDED(mutex_);
  void Trim();
  void SetPressure(MemoryPressure pressure,
                   const std::optional<MemoryUse>& use);

  const MemoryGuardOptions options_;
  RequestGate* const gate_;
  prometheus::Gauge& used_;
  prometheus::Gauge& limit_;
  prometheus::Counter& refused_;
  prometheus::Counter& shed_waiting_;
  prometheus::Counter& trims_;
  std::function<uint64_t()> shed_;
  std::function<void()> haste_;

  absl::Mutex mutex_;
  bool hastened_ ABSL_GUARDED_BY(mutex_) = false;
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;  // Since the last Check().
  absl::Time looked_at_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Shares, in bytes, of those that entered since looked_at_, and in the
  // interval before.
  double entered_ ABSL_GUARDED_BY(mutex_) = 0;
  double entered_before_ ABSL_GUARDED_BY(mutex_) = 0;
  // Bytes below the first bound at the newest look, less both.
  double room_ ABSL_GUARDED_BY(mutex_) = 0;

  // Check()'s thread.
  MemoryPressure pressure_ = MemoryPressure::kNone;
  absl::Time shed_at_ = absl::InfinitePast();
  absl::Time busy_at_ = absl::InfinitePast();
  bool trimmed_ = true;  // Since busy_at_.
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_MEMORY_GUARD_H_
