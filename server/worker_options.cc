#include "server/worker_options.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/field_error.h"
#include "base/status_macros.h"

namespace baton {
namespace {

constexpr double kMaxRequests = 65536;
constexpr double kMaxStepTokens = 65536;

void AddModelFlags(Flags* flags, WorkerOptions* o) {
  flags->Group("Model");
  flags->Add(&o->model, {.name = "model",
                         .help = "Folder with config.json and safetensors.",
                         .required = true});
  flags->AddChoice(
      &o->weights,
      {{"auto", WeightStorage::kAsStored},
       {"f32", WeightStorage::kF32},
       {"bf16", WeightStorage::kBf16}},
      {.name = "weights",
       .help = "How weights are kept in memory. auto: as the files have them. "
               "No choice changes a result."});
  flags->AddChoice(&o->cache_dtype,
                   {{"f32", CacheDtype::kF32}, {"bf16", CacheDtype::kBf16}},
                   {.name = "cache_dtype", .help = "Type of the KV cache."});
  flags->AddChoice(
      &o->numerics,
      {{"exact", Numerics::kExact},
       {"fast", Numerics::kFast},
       {"fast_bf16", Numerics::kFastBf16}},
      {.name = "numerics",
       .help = "exact: one form of attention everywhere. fast: prompts are "
               "attended to in expanded form. fast_bf16: and bf16 weights are "
               "multiplied by activations rounded to bf16. Within each, a "
               "request has the same tokens in any batch and chunk."});
  flags->Add(&o->max_context_tokens,
             {.name = "max_context_tokens",
              .help = "Prompt and answer together, in tokens. 0: the model's "
                      "own limit.",
              .max = 1e9});
}

void AddEngineFlags(Flags* flags, WorkerOptions* o) {
  flags->Group("Engine");
  flags->Add(&o->threads,
             {.name = "threads",
              .help = "Threads of the kernels. 0: as many as there are CPUs.",
              .max = 1024});
  flags->Add(&o->pin_threads,
             {.name = "pin_threads",
              .help = "Pin the kernels' threads to the CPUs of the process."});
  flags->Add(&o->engine.max_running_requests,
             {.name = "max_running_requests",
              .help = "Requests in the batch at once.",
              .min = 1,
              .max = kMaxRequests});
  flags->Add(&o->engine.max_waiting_requests,
             {.name = "max_waiting_requests",
              .help = "Requests that may wait; more are RESOURCE_EXHAUSTED.",
              .min = 1,
              .max = 16 * kMaxRequests});
  flags->Add(&o->engine.max_batched_tokens,
             {.name = "max_batched_tokens",
              .help = "Prompt tokens in one step.",
              .min = 1,
              .max = kMaxStepTokens});
  flags->Add(&o->engine.max_chunk_tokens,
             {.name = "max_chunk_tokens",
              .help = "Tokens of one prompt in one step.",
              .min = 1,
              .max = kMaxStepTokens});
  flags->Add(&o->engine.decode_steps_per_prefill,
             {.name = "decode_steps_per_prefill",
              .help = "Decode steps between two prefill steps while both kinds "
                      "of work wait.",
              .min = 1,
              .max = 1e6});
  flags->Add(&o->engine.prefix_cache,
             {.name = "prefix_cache",
              .help = "Keep the KV of whole blocks of 64 tokens while there is "
                      "room, and neither compute nor move them again for a "
                      "prompt that begins with them. The tokens are the same "
                      "either way."});
}

void AddStepFlags(Flags* flags, WorkerOptions* o) {
  flags->Add(&o->async_scheduling,
             {.name = "async_scheduling",
              .help = "Plan and launch a step while the one before it runs. "
                      "The tokens are the same either way."});
  flags->Add(&o->engine.pipeline_depth,
             {.name = "pipeline_depth",
              .help = "Steps in flight at most, with --async_scheduling.",
              .min = 1,
              .max = kMaxPipelineDepth});
  flags->Add(&o->engine.num_draft_tokens,
             {.name = "num_draft_tokens",
              .help = "Tokens to draft ahead with the model's own MTP layer. "
                      "They change speed, never tokens. The same on all "
                      "workers of a model. 0: off.",
              .max = kMaxDraftTokens});
  flags->Add(&o->adaptive_verification,
             {.name = "adaptive_verification",
              .help = "Verify the drafts that pay, by step times measured at "
                      "start and since. false: all."});
  flags->AddChoice(&o->isa,
                   {{"auto", std::nullopt},
                    {"array", VectorIsa::kArray},
                    {"avx2", VectorIsa::kAvx2},
                    {"avx512", VectorIsa::kAvx512}},
                   {.name = "isa",
                    .help = "Vector instructions of the kernels. auto: the "
                            "widest. All give the same bits."});
}

void AddKvFlags(Flags* flags, WorkerOptions* o) {
  flags->Group("KV cache");
  flags->Add(
      &o->kv_cache_bytes,
      {.name = "kv_cache_bytes",
       .help = "Size of the KV pool, taken at the start. By default a "
               "quarter of the free memory, and at most what "
               "max_running_requests take at half of the longest context.",
       .min = 1});
  flags->Add(&o->kv_blocks, {.name = "kv_blocks",
                             .help = "Size of the KV pool in blocks of 64 "
                                     "tokens, instead of kv_cache_bytes.",
                             .min = 1,
                             .max = 1e9});
  flags->AddChoice(
      &o->transport,
      {{"auto", UcxMode::kAuto},
       {"shm", UcxMode::kShm},
       {"tcp", UcxMode::kTcp},
       {"ucx", UcxMode::kTcp}},
      {.name = "transport",
       .help = "How KV moves between prefill and decode servers, "
               "and what a group's processes tell each other. "
               "auto: shared memory on one host, else tcp; ucx is another "
               "name of that."});
  flags->Add(
      &o->transport_devices,
      {.name = "transport_devices",
       .help = "Network devices for that, comma-separated. auto: loopback "
               "alone if --listen is loopback, else all."});
  flags->Add(&o->kv_lease,
             {.name = "kv_lease",
              .help = "A prefill server frees a prompt's KV so long after the "
                      "last sign of life from the decode server.",
              .min = 0.1,
              .max = 3600});
  flags->Add(&o->kv_checksums,
             {.name = "kv_checksums",
              .help = "A decode server compares each block of KV that it gets "
                      "with a checksum by the prefill server. A damaged one "
                      "ends that try of its request alone."});
}

void AddGroupFlags(Flags* flags, WorkerOptions* o) {
  flags->Group("Expert-parallel group");
  flags->Add(&o->group_flags.ep_size,
             {.name = "ep_size",
              .help = "Ranks over which the experts are shared out; each has "
                      "an engine and requests of its own. By default 1, or "
                      "with LWS_GROUP_SIZE so many times --local_ranks.",
              .min = 1,
              .max = kMaxGroupRanks});
  flags->Add(&o->group_flags.local_ranks,
             {.name = "local_ranks",
              .help = "Ranks of the group that this process hosts; each "
                      "process of a group has as many. 0: all, or with "
                      "LWS_GROUP_SIZE its share of --ep_size.",
              .max = kMaxGroupRanks});
  flags->Add(&o->group_flags.rank_offset,
             {.name = "rank_offset",
              .help = "The first rank that this process hosts. By default 0, "
                      "or with LWS_WORKER_INDEX so many times --local_ranks.",
              .max = kMaxGroupRanks});
  flags->Add(&o->group_flags.leader,
             {.name = "leader",
              .help = "host:port at which the process with rank 0 listens for "
                      "the others, where there are others. By default the host "
                      "is LWS_LEADER_ADDRESS and the port 7480."});
  flags->Add(&o->num_redundant_experts,
             {.name = "num_redundant_experts",
              .help = "Copies of experts beyond one each. By default the "
                      "fewest with which experts divide by ranks.",
              .max = 65535});
  flags->Add(&o->all_interval,
             {.name = "all_interval",
              .help = "Decode steps between two at which the group prefills "
                      "if all its ranks want to.",
              .min = 1,
              .max = 1e6});
  flags->Add(&o->any_interval,
             {.name = "any_interval",
              .help = "Decode steps between two at which it prefills if any "
                      "rank wants to.",
              .min = 1,
              .max = 1e6});
  flags->Add(&o->max_prefill_wait,
             {.name = "max_prefill_wait",
              .help = "A prompt that has waited for so long is prefilled at "
                      "the next step, whatever the other ranks want.",
              .max = 60});
  flags->Add(&o->watchdog,
             {.name = "watchdog",
              .help = "A rank that keeps the others waiting for so long ends "
                      "the group's epoch: it is named, requests are handed "
                      "back, and the group forms again.",
              .min = 0.1,
              .max = 600});
}

const char* UcxModeName(UcxMode mode) {
  switch (mode) {
    case UcxMode::kAuto:
      return "auto";
    case UcxMode::kShm:
      return "shm";
    case UcxMode::kTcp:
      return "tcp";
  }
  return "";
}

void AddEplbFlags(Flags* flags, WorkerOptions* o) {
  flags->Add(&o->eplb_interval,
             {.name = "eplb_interval",
              .help = "Steps between two looks at where experts should be "
                      "(expert-parallel load balancing), the first after a "
                      "quarter. The same on all workers of the group. 0: "
                      "experts stay where they are.",
              .max = 1e9});
  flags->Add(&o->eplb_window,
             {.name = "eplb_window",
              .help = "So many of the newest steps are looked at. The same on "
                      "all workers of the group.",
              .min = 1,
              .max = 1e6});
  flags->Add(&o->eplb_max_layers_in_flight,
             {.name = "eplb_max_layers_in_flight",
              .help = "Layers whose experts move at a time: memory for so many "
                      "is taken besides that of the weights.",
              .min = 1,
              .max = 1000});
}

absl::Status CheckIsa(VectorIsa isa) {
  const std::vector<VectorIsa> supported = SupportedVectorIsas();
  if (std::find(supported.begin(), supported.end(), isa) != supported.end()) {
    return absl::OkStatus();
  }
  return FieldError("isa", "this CPU cannot run " +
                               std::string(VectorIsaName(isa)) + " code");
}

bool IsLoopback(const std::string& address) {
  return address.compare(0, 4, "127.") == 0 ||
         address.compare(0, 10, "localhost:") == 0 ||
         address.compare(0, 6, "[::1]:") == 0;
}

}  // namespace

const char* WorkerRoleName(WorkerRole role) {
  switch (role) {
    case WorkerRole::kPrefill:
      return "prefill";
    case WorkerRole::kDecode:
      return "decode";
    case WorkerRole::kUnified:
      return "unified";
  }
  return "";
}

std::string WorkerOptions::UcxDevices() const {
  if (transport_devices != "auto") return transport_devices;
  return IsLoopback(daemon.listen) ? "lo" : "";
}

void AddWorkerFlags(Flags* flags, WorkerOptions* options) {
  flags->Group("Role");
  flags->AddChoice(&options->role,
                   {{"prefill", WorkerRole::kPrefill},
                    {"decode", WorkerRole::kDecode},
                    {"unified", WorkerRole::kUnified}},
                   {.name = "role",
                    .help = "prefill computes prompts and gives their KV away, "
                            "decode takes it and generates, unified does both "
                            "by itself."});
  AddModelFlags(flags, options);
  AddEngineFlags(flags, options);
  AddStepFlags(flags, options);
  AddKvFlags(flags, options);
  AddGroupFlags(flags, options);
  AddEplbFlags(flags, options);
  AddStreamFlags(flags, &options->streams);
  AddDaemonFlags(flags, &options->daemon);
#ifdef BATON_FAULT_POINTS
  flags->Add(&options->fault_points,
             {.name = "fault_points",
              .help = "What goes wrong where, NAME:ACTION[:COUNT],..."});
#endif
  flags->Add(&options->stuck_step_timeout,
             {.name = "stuck_step_timeout",
              .help = "A step of the device that has not ended after so long, "
                      "or after 20 times what is predicted for it if that is "
                      "more, is stuck: /healthz and liveness fail until it "
                      "ends. 0: never.",
              .min = 0,
              .max = 86400});
}

std::vector<GroupOption> GroupOptionsOf(const WorkerOptions& o) {
  const auto number = [](const char* name, uint64_t value) {
    return GroupOption{name, std::to_string(value)};
  };
  const auto duration = [](const char* name, absl::Duration value) {
    return GroupOption{name, absl::FormatDuration(value)};
  };
  return {
      {"role", WorkerRoleName(o.role)},
      {"cache_dtype", o.cache_dtype == CacheDtype::kBf16 ? "bf16" : "f32"},
      {"numerics", std::string(NumericsName(o.numerics))},
      number("local_ranks", o.group.local_ranks),
      {"num_redundant_experts", o.num_redundant_experts.has_value()
                                    ? std::to_string(*o.num_redundant_experts)
                                    : "default"},
      {"transport", UcxModeName(o.transport)},
      number("max_context_tokens", o.max_context_tokens),
      number("max_running_requests", o.engine.max_running_requests),
      number("max_batched_tokens", o.engine.max_batched_tokens),
      number("max_chunk_tokens", o.engine.max_chunk_tokens),
      number("num_draft_tokens", o.engine.num_draft_tokens),
      number("all_interval", o.all_interval),
      number("any_interval", o.any_interval),
      duration("max_prefill_wait", o.max_prefill_wait),
      duration("watchdog", o.watchdog),
      number("eplb_interval", o.eplb_interval),
      number("eplb_window", o.eplb_window),
      number("eplb_max_layers_in_flight", o.eplb_max_layers_in_flight),
  };
}

absl::Status ValidateWorkerOptions(const WorkerOptions& o) {
#ifdef BATON_FAULT_POINTS
  if (const std::string problem = ArmFaultPoints(o.fault_points);
      !problem.empty()) {
    return FieldError("fault_points", problem);
  }
#endif
  if (o.engine.max_chunk_tokens > o.engine.max_batched_tokens) {
    return FieldError("max_chunk_tokens",
                      absl::StrCat("is more than --max_batched_tokens, ",
                                   o.engine.max_batched_tokens));
  }
  if (o.max_context_tokens == 1) {
    return FieldError("max_context_tokens",
                      "1 has no room for a prompt and an answer");
  }
  if (o.kv_cache_bytes.has_value() && o.kv_blocks.has_value()) {
    return FieldError("kv_blocks", "contradicts --kv_cache_bytes: give one");
  }
  if (o.kv_blocks.value_or(o.group.local_ranks) < o.group.local_ranks) {
    return FieldError(
        "kv_blocks",
        absl::StrCat(*o.kv_blocks,
                     " are too few for --local_ranks=", o.group.local_ranks));
  }
  if (o.numerics == Numerics::kFastBf16 && o.weights == WeightStorage::kF32) {
    return FieldError("weights",
                      "f32 contradicts --numerics=fast_bf16, which multiplies "
                      "by bf16");
  }
  if (o.isa.has_value()) RETURN_IF_ERROR(CheckIsa(*o.isa));
  return ValidateDaemonOptions(o.daemon);
}

}  // namespace baton
