#include "server/edge/memory_guard.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/time/time.h"
#include "base/logging.h"
#include "server/edge/grpc_status.h"
#include "server/edge/metrics.h"
#include "server/edge/series_maker.h"

namespace baton {
namespace {

// Running requests end, and another process may have room, by then.
constexpr absl::Duration kRetryDelay = absl::Seconds(2);
// Between two looks that requests cause. What they take is counted as taken for
// so long at least: by then it should show.
constexpr absl::Duration kAdmitLook = absl::Milliseconds(50);
constexpr absl::Duration kShedInterval = absl::Seconds(1);
constexpr absl::Duration kIdleTime = absl::Seconds(10);

const char* Name(MemoryPressure pressure) {
  switch (pressure) {
    case MemoryPressure::kNone:
      return "none";
    case MemoryPressure::kRefuse:
      return "refuse";
    case MemoryPressure::kShed:
      return "shed";
  }
  return "";
}

// Bytes below the first bound.
double RoomOf(const std::optional<MemoryUse>& use,
              const MemoryGuardOptions& options) {
  if (!use.has_value() || options.refuse_ratio == 0) {
    return std::numeric_limits<double>::infinity();
  }
  return options.refuse_ratio * static_cast<double>(use->limit_bytes) -
         static_cast<double>(use->used_bytes);
}

prometheus::Counter& ShedRequests(const SeriesMaker& make, const char* what) {
  return make.OneCounter("baton_shed_requests_total",
                         "Requests not taken, or sent away while they waited, "
                         "for lack of memory.",
                         {{"requests", what}});
}

}  // namespace

absl::Status OutOfMemoryError() {
  return WithReason(WithRetryDelay(absl::ResourceExhaustedError(
                                       "the server is out of memory"),
                                   kRetryDelay),
                    "OUT_OF_MEMORY");
}

uint64_t RequestFootprint(const RequestSize& size) {
  constexpr uint64_t kKib = 1024;
  const uint64_t samples =
      std::clamp<uint64_t>(size.num_samples, 1, kMaxSamples);
  return 24 * kKib + 12 * size.message_bytes +
         samples * (8 * kKib + 4 * size.message_bytes);
}

MemoryPressure PressureOf(const std::optional<MemoryUse>& use,
                          const MemoryGuardOptions& options) {
  if (!use.has_value()) return MemoryPressure::kNone;
  const auto is_above = [ratio = use->ratio()](double bound) {
    return bound > 0 && ratio > bound;
  };
  if (is_above(options.shed_ratio)) return MemoryPressure::kShed;
  return is_above(options.refuse_ratio) ? MemoryPressure::kRefuse
                                        : MemoryPressure::kNone;
}

MemoryGuard::MemoryGuard(MemoryGuardOptions options, RequestGate* gate,
                         prometheus::Registry* registry,
                         const std::string& role)
    : options_(std::move(options)),
      gate_(gate),
      used_(SeriesMaker{registry, role}.OneGauge(
          "baton_memory_used_bytes",
          "Memory taken of the nearest limit on this process; where neither a "
          "cgroup nor the address space limits it, of the whole machine, by "
          "all its processes.")),
      limit_(SeriesMaker{registry, role}.OneGauge(
          "baton_memory_limit_bytes",
          "Memory limit nearest to this process: of a cgroup, or on its "
          "address space; without any, the machine's memory. 0: unknown.")),
      refused_(ShedRequests(SeriesMaker{registry, role}, "new")),
      shed_waiting_(ShedRequests(SeriesMaker{registry, role}, "waiting")),
      trims_(SeriesMaker{registry, role}.OneCounter(
          "baton_memory_trims_total",
          "Times the process gave back what was free but kept: under memory "
          "pressure, and once idle.")) {
  gate_->OnEnter([this](const RequestSize& size) { return Admit(size); });
}

absl::Status MemoryGuard::Admit(const RequestSize& size) {
  const auto share = static_cast<double>(RequestFootprint(size));
  bool hastens = false;
  {
    absl::MutexLock lock(&mutex_);
    asked_ = true;
    if (absl::AbsDuration(options_.now() - looked_at_) >= kAdmitLook) Look();
    if (room_ >= share) {
      room_ -= share;
      entered_ += share;
      return absl::OkStatus();
    }
    hastens = !std::exchange(hastened_, true);
  }
  refused_.Increment();
  if (hastens && haste_) haste_();
  return OutOfMemoryError();
}

std::optional<MemoryUse> MemoryGuard::Look() {
  const std::optional<MemoryUse> use = options_.read();
  used_.Set(use.has_value() ? static_cast<double>(use->used_bytes) : 0);
  limit_.Set(use.has_value() ? static_cast<double>(use->limit_bytes) : 0);
  const absl::Time now = options_.now();
  if (absl::AbsDuration(now - looked_at_) >= kAdmitLook) {
    looked_at_ = now;
    entered_before_ = std::exchange(entered_, 0);
  }
  room_ = RoomOf(use, options_) - entered_ - entered_before_;
  return use;
}

std::optional<MemoryUse> MemoryGuard::LookAndTrim() {
  {
    absl::MutexLock lock(&mutex_);
    hastened_ = false;
    const std::optional<MemoryUse> use = Look();
    // What is free but kept is where the calls of a burst find room that are
    // refused: it is not given to others before it must be.
    if (PressureOf(use, options_) == MemoryPressure::kNone) return use;
  }
  Trim();
  absl::MutexLock lock(&mutex_);
  return Look();
}

MemoryPressure MemoryGuard::Check() {
  const std::optional<MemoryUse> use = LookAndTrim();
  const MemoryPressure pressure = PressureOf(use, options_);
  if (pressure != pressure_) SetPressure(pressure, use);
  const absl::Time now = options_.now();
  if (pressure == MemoryPressure::kShed && shed_ &&
      now - shed_at_ >= kShedInterval) {
    shed_at_ = now;
    shed_waiting_.Increment(static_cast<double>(shed_()));
  }
  bool asked = false;
  {
    absl::MutexLock lock(&mutex_);
    asked = std::exchange(asked_, false);
  }
  if (asked || gate_->inside() > 0) {
    busy_at_ = now;
    trimmed_ = false;
  } else if (!trimmed_ && now - busy_at_ >= kIdleTime) {
    trimmed_ = true;
    Trim();
  }
  return pressure;
}

void MemoryGuard::Trim() {
  options_.trim();
  trims_.Increment();
}

void MemoryGuard::SetPressure(MemoryPressure pressure,
                              const std::optional<MemoryUse>& use) {
  LOG(WARNING) << "memory pressure " << Name(pressure) << " before "
               << Name(pressure_) << " used "
               << (use.has_value() ? use->used_bytes : 0) << " limit "
               << (use.has_value() ? use->limit_bytes : 0);
  pressure_ = pressure;
}

}  // namespace baton
