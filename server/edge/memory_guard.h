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

#include "absl/status/status.h"
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
};

// None where no limit is known.
MemoryPressure PressureOf(const std::optional<MemoryUse>& use,
                          const MemoryGuardOptions& options);

// One thread.
class MemoryGuard {
 public:
  // Borrows gate and registry.
  MemoryGuard(MemoryGuardOptions options, RequestGate* gate,
              prometheus::Registry* registry, const std::string& role);

  // `shed` ends, or is about to end, the younger half of what waits with
  // OutOfMemoryError, and says how many that are. Without it none are shed.
  void OnShed(std::function<uint64_t()> shed) { shed_ = std::move(shed); }

  // Looks, and acts. To be called now and then.
  void Check();

 private:
  void Enter(MemoryPressure pressure, const std::optional<MemoryUse>& use);

  const MemoryGuardOptions options_;
  RequestGate* const gate_;
  prometheus::Gauge& used_;
  prometheus::Gauge& limit_;
  prometheus::Counter& refused_;
  prometheus::Counter& shed_waiting_;
  std::function<uint64_t()> shed_;
  MemoryPressure pressure_ = MemoryPressure::kNone;
  int idle_looks_ = 0;  // That found nobody inside, in a row.
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_MEMORY_GUARD_H_
