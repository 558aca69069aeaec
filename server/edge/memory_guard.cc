#include "server/edge/memory_guard.h"

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
// Between two looks that requests cause: what they took shows by then.
constexpr absl::Duration kAdmitLook = absl::Milliseconds(50);
// With nobody inside, at one a second; then memory is given back.
constexpr int kIdleLooks = 10;

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
  gate_->OnEnter([this](uint64_t bytes) { return Admit(bytes); });
}

absl::Status MemoryGuard::Admit(uint64_t message_bytes) {
  bool rose = false;
  bool is_admitted = false;
  {
    absl::MutexLock lock(&mutex_);
    if (options_.now() - looked_at_ >= kAdmitLook) rose = Look();
    const auto share = static_cast<double>(RequestFootprint(message_bytes));
    is_admitted = room_ >= share;
    if (is_admitted) {
      room_ -= share;
      entered_ += share;
    }
  }
  if (rose && rose_) rose_();
  if (is_admitted) return absl::OkStatus();
  refused_.Increment();
  return OutOfMemoryError();
}

bool MemoryGuard::Look() {
  const std::optional<MemoryUse> use = options_.read();
  looked_at_ = options_.now();
  used_.Set(use.has_value() ? static_cast<double>(use->used_bytes) : 0);
  limit_.Set(use.has_value() ? static_cast<double>(use->limit_bytes) : 0);
  room_ = RoomOf(use, options_) - entered_;
  entered_ = 0;
  const MemoryPressure before = pressure_;
  const MemoryPressure pressure = PressureOf(use, options_);
  if (pressure != before) Enter(pressure, use);
  return pressure > before;
}

MemoryPressure MemoryGuard::Check() {
  MemoryPressure pressure;
  {
    absl::MutexLock lock(&mutex_);
    Look();
    pressure = pressure_;
  }
  if (pressure == MemoryPressure::kShed && shed_) {
    shed_waiting_.Increment(static_cast<double>(shed_()));
  }
  idle_looks_ = gate_->inside() > 0 ? 0 : idle_looks_ + 1;
  if (pressure != MemoryPressure::kNone || idle_looks_ == kIdleLooks) {
    options_.trim();
    trims_.Increment();
  }
  return pressure;
}

void MemoryGuard::Enter(MemoryPressure pressure,
                        const std::optional<MemoryUse>& use) {
  LOG(WARNING) << "memory pressure " << Name(pressure) << " before "
               << Name(pressure_) << " used "
               << (use.has_value() ? use->used_bytes : 0) << " limit "
               << (use.has_value() ? use->limit_bytes : 0);
  pressure_ = pressure;
}

}  // namespace baton
