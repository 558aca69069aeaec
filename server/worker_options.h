// What batond can be told.
#ifndef BATON_SERVER_WORKER_OPTIONS_H_
#define BATON_SERVER_WORKER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/group_layout.h"
#include "comm/group_message.h"
#include "comm/ucx_transport.h"
#include "engine/engine_options.h"
#include "engine/model/numerics.h"
#include "engine/model/weight_storage.h"
#include "kernels/cpu_context.h"
#include "kernels/latent_attention.h"
#include "server/edge/config.h"
#include "server/edge/daemon.h"
#include "server/edge/stream_flags.h"

namespace baton {

enum class WorkerRole { kPrefill, kDecode, kUnified };

// "prefill", "decode", "unified".
const char* WorkerRoleName(WorkerRole role);

struct WorkerOptions {
  WorkerRole role = WorkerRole::kUnified;

  std::string model;
  WeightStorage weights = WeightStorage::kAsStored;
  CacheDtype cache_dtype = CacheDtype::kBf16;
  Numerics numerics = Numerics::kExact;
  uint32_t max_context_tokens = 0;  // 0: the model's own.

  uint32_t threads = 0;  // 0: as many as there are CPUs.
  bool pin_threads = true;
  std::optional<VectorIsa> isa;  // Absent: the widest.

  EngineOptions engine;
  bool async_scheduling = true;
  bool adaptive_verification = true;
  std::optional<ByteSize> kv_cache_bytes;
  std::optional<uint32_t> kv_blocks;

  UcxMode transport = UcxMode::kAuto;
  std::string transport_devices = "auto";
  absl::Duration kv_lease = absl::Seconds(30);
  bool kv_checksums = false;

  GroupFlags group_flags = {.local_ranks = 0};
  GroupLayout group;  // What follows; ResolveGroupLayout.
  std::optional<uint32_t> num_redundant_experts;
  uint32_t all_interval = 70;
  uint32_t any_interval = 100;
  absl::Duration max_prefill_wait = absl::Milliseconds(20);
  absl::Duration watchdog = absl::Seconds(5);
  // As of ExpertRebalanceOptions.
  uint32_t eplb_interval = 10000;
  uint32_t eplb_window = 1000;
  uint32_t eplb_max_layers_in_flight = 4;

  // Longer than a router's: it cuts a client that reads nothing first.
  StreamFlags streams = {.slow_reader_timeout = absl::Seconds(90)};
  DaemonOptions daemon;
  absl::Duration stuck_step_timeout = absl::Minutes(1);

#ifdef BATON_FAULT_POINTS
  std::string fault_points;  // base/fault_point.h.
#endif

  // Devices for UCX: loopback alone if gRPC listens there alone.
  std::string UcxDevices() const;
};

// What must be the same on all processes of the group.
std::vector<GroupOption> GroupOptionsOf(const WorkerOptions& options);

void AddWorkerFlags(Flags* flags, WorkerOptions* options);

// Contradictions, and what this machine or this version cannot do; names the
// flag.
absl::Status ValidateWorkerOptions(const WorkerOptions& options);

}  // namespace baton

#endif  // BATON_SERVER_WORKER_OPTIONS_H_
