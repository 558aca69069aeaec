// Runs seeds of the group simulator.
#include <unistd.h>

#include <cstdint>
#include <iostream>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/edge/config.h"
#include "tests/simulation/group/group_simulation.h"

namespace baton {
namespace {

struct Options {
  uint64_t seeds = 1;
  GroupSimulationOptions group;
};

void AddFlags(Flags* flags, Options* o) {
  flags->Add(&o->group.seed, {.name = "seed", .help = "The first seed."});
  flags->Add(
      &o->seeds,
      {.name = "seeds", .help = "So many, one after the other.", .min = 1});
  flags->Add(&o->group.rank_steps,
             {.name = "rank_steps",
              .help = "Of a seed: steps of the group, times its ranks.",
              .min = 1});
  flags->Add(
      &o->group.num_ranks,
      {.name = "ranks", .help = "Of the group. 0: 2 to 16.", .max = 128});
  flags->Add(&o->group.hashes_kv,
             {.name = "hashes_kv",
              .help = "Over a model that hashes its KV, and a real executor."});
  flags->Add(&o->group.faults,
             {.name = "faults", .help = "Processes are killed and stopped."});
}

void RunSeeds(const Options& options) {
  const absl::Time start = absl::Now();
  GroupResult total;
  for (uint64_t i = 0; i < options.seeds; ++i) {
    GroupSimulationOptions group = options.group;
    group.seed += i;
    total += SimulateGroup(group);
  }
  std::cout << "seeds " << options.seeds << " " << ToString(total)
            << " seconds " << absl::ToDoubleSeconds(absl::Now() - start)
            << " differences 0" << std::endl;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::Options options;
  baton::Flags flags("simulate",
                     "Simulates groups; dies of the first step on which two "
                     "processes differ, wrong token or standstill, and says "
                     "how to repeat it.");
  baton::AddFlags(&flags, &options);
  if (const auto code = flags.ParseOrExitCode(
          argc, argv, environ, [] { return absl::OkStatus(); })) {
    return *code;
  }
  baton::RunSeeds(options);
  return 0;
}
