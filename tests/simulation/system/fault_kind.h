// What may go wrong in a simulated system.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_FAULT_KIND_H_
#define BATON_TESTS_SIMULATION_SYSTEM_FAULT_KIND_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace baton {

enum class FaultKind : uint8_t {
  // At a time of their own.
  kPrefillCrash,     // With calls open.
  kDecodeCrash,      // Likewise.
  kUnifiedCrash,     // Likewise.
  kHostLoss,         // A worker with its host: nobody is told.
  kCrashBeforePull,  // Of a prefill worker: as it is asked for its KV;
  kCrashInPull,      // as it has told of the first blocks;
  kCrashAfterPull,   // as the last word comes that all was pulled.
  kDrain,            // All ends within the grace.
  kDrainCut,         // Something does not.
  kStandStill,       // Of a worker, for a while.
  kRouterCrash,      // With calls open.
  kLinkBreak,        // Every call between a router and a worker.
  kCallBreak,        // One.
  kClientBreak,      // Every call between a router and a client.
  kHalfOpen,         // Words of a router or a worker don't arrive,
  kPartition,        // or of neither, for a while.
  kKvPartition,      // Between a prefill and a decode worker.
  // Of KV messages and blocks.
  kKvLoss,
  kKvRepeat,
  kKvDelay,  // So that others overtake it.
  // Of a request.
  kCancel,
  kDeadline,
  // Of a reader that falls behind.
  kClientPause,  // The router reads no more for it.
  kSlowReaderCut,
  kWorkerPause,  // The router does not read: its samples stand still.
  kWorkerCut,    // It has not read for too long.
  // What tight limits bring about.
  kRouterQueueFull,
  kWorkerQueueFull,
  kPreemption,    // A pool without a block.
  kLeaseRunsOut,  // At the prefill worker.
  kKvRefused,     // By the decode worker: the lease has ended.
};
inline constexpr size_t kNumFaultKinds = 31;

inline constexpr std::array<std::string_view, kNumFaultKinds> kFaultNames = {
    "prefill_crash",
    "decode_crash",
    "unified_crash",
    "host_loss",
    "crash_before_pull",
    "crash_in_pull",
    "crash_after_pull",
    "drain",
    "drain_cut",
    "stand_still",
    "router_crash",
    "link_break",
    "call_break",
    "client_break",
    "half_open",
    "partition",
    "kv_partition",
    "kv_loss",
    "kv_repeat",
    "kv_delay",
    "cancel",
    "deadline",
    "client_pause",
    "slow_reader_cut",
    "worker_pause",
    "worker_cut",
    "router_queue_full",
    "worker_queue_full",
    "preemption",
    "lease_runs_out",
    "kv_refused"};

// How often each has happened.
using FaultCounts = std::array<uint64_t, kNumFaultKinds>;

inline uint64_t& CountOf(FaultKind kind, FaultCounts* counts) {
  return (*counts)[static_cast<size_t>(kind)];
}

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_FAULT_KIND_H_
