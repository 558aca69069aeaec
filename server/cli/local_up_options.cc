#include "server/cli/local_up_options.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"

namespace baton {
namespace {

void AddGroupFlags(Flags& flags, LocalUpOptions* options) {
  const auto add_ranks = [&](uint32_t* value, const char* name,
                             const char* help) {
    flags.Add(value, {.name = name, .help = help, .min = 1, .max = 1024});
  };
  add_ranks(&options->prefill_ep, "prefill_ep",
            "Ranks of each prefill worker's expert-parallel group.");
  add_ranks(&options->decode_ep, "decode_ep",
            "Ranks of each decode worker's group.");
  add_ranks(&options->unified_ep, "unified_ep",
            "Ranks of the unified worker's group.");
  const auto add_processes = [&](uint32_t* value, const char* name,
                                 const char* help) {
    flags.Add(value, {.name = name, .help = help, .min = 1, .max = 64});
  };
  add_processes(&options->prefill_processes, "prefill_processes",
                "Processes that share out the ranks of each prefill worker, "
                "evenly.");
  add_processes(&options->decode_processes, "decode_processes",
                "Likewise, of each decode worker.");
  add_processes(&options->unified_processes, "unified_processes",
                "Likewise, of the unified worker.");
}

absl::Status ValidateGroups(const LocalUpOptions& o) {
  struct Group {
    std::string role;
    bool is_used;
    uint32_t ep_size;
    uint32_t num_processes;
  };
  const Group groups[] = {
      {"prefill", !o.unified, o.prefill_ep, o.prefill_processes},
      {"decode", !o.unified, o.decode_ep, o.decode_processes},
      {"unified", o.unified, o.unified_ep, o.unified_processes}};
  for (const auto& [role, is_used, ep_size, num_processes] : groups) {
    const std::string ranks = role + "_ep";
    const std::string processes = role + "_processes";
    if (!is_used && (ep_size > 1 || num_processes > 1)) {
      return FieldError(ep_size > 1 ? ranks : processes,
                        o.unified ? "contradicts --unified; say --unified_ep "
                                    "and --unified_processes"
                                  : "is of --unified");
    }
    if (ep_size % num_processes != 0) {
      return FieldError(
          processes, absl::StrCat(num_processes, " does not divide --", ranks,
                                  "=", ep_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AddLocalUpFlags(Flags& flags, LocalUpOptions* options) {
  flags.Group("Pools");
  flags.Add(&options->model,
            {.name = "model", .help = "The model's folder.", .required = true});
  flags.Add(&options->prefill, {.name = "prefill",
                                .help = "Number of prefill workers. Absent: 1.",
                                .min = 1,
                                .max = 64});
  flags.Add(&options->decode, {.name = "decode",
                               .help = "Number of decode workers. Absent: 1.",
                               .min = 1,
                               .max = 64});
  flags.Add(&options->unified,
            {.name = "unified", .help = "One worker that does both, instead."});
  AddGroupFlags(flags, options);
  flags.Add(&options->router_listen,
            {.name = "router_listen",
             .help = "Where the router listens; port 0 takes any free one."});
  flags.Group("Programs");
  flags.Add(&options->bin_dir,
            {.name = "bin_dir",
             .help = "Folder of batond and baton-router. Absent: beside this "
                     "program."});
  flags.Add(&options->worker_flags,
            {.name = "worker_flags",
             .help = "Flags for every batond: --threads=1,--verbosity=1."});
  flags.Add(&options->router_flags,
            {.name = "router_flags", .help = "Flags for baton-router."});
  flags.Group("Life");
  flags.Add(&options->ready_file,
            {.name = "ready_file",
             .help = "JSON with the processes and endpoints, written when all "
                     "are ready, removed at the end."});
  flags.Add(&options->log_dir,
            {.name = "log_dir",
             .help = "Keeps the logs there. Absent: they go with the "
                     "processes."});
  flags.Add(&options->start_timeout, {.name = "start_timeout",
                                      .help = "Of each step of the start.",
                                      .min = 0.1,
                                      .max = 3600});
  flags.Add(&options->grace, {.name = "grace",
                              .help = "How long each process may take to end.",
                              .min = 0,
                              .max = 3600});
}

absl::Status ValidateLocalUp(const LocalUpOptions& options) {
  if (options.unified && (options.prefill || options.decode)) {
    return FieldError("unified",
                      "is one worker that does both: it contradicts --prefill "
                      "and --decode");
  }
  RETURN_IF_ERROR(ValidateGroups(options));
  if (!std::filesystem::is_directory(options.model)) {
    return FieldError("model", "\"" + options.model + "\" is no folder");
  }
  return absl::OkStatus();
}

}  // namespace baton
