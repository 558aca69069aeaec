// Runs seeds of the whole system's simulator.
#include <unistd.h>

#include <cstdint>
#include <iostream>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/edge/config.h"
#include "tests/simulation/system/system_simulation.h"

namespace baton {
namespace {

struct Options {
  uint64_t seed = 1;
  uint64_t seeds = 1;
  uint64_t events = 1000;
  bool trace = false;
  absl::Duration progress = absl::Seconds(10);
};

void AddFlags(Flags* flags, Options* o) {
  flags->Add(&o->seed, {.name = "seed", .help = "The first seed."});
  flags->Add(
      &o->seeds,
      {.name = "seeds", .help = "So many, one after the other.", .min = 1});
  flags->Add(&o->events, {.name = "events",
                          .help = "Of a seed, before its faults end.",
                          .min = 1});
  flags->Add(&o->trace, {.name = "trace", .help = "Prints every event."});
  flags->Add(&o->progress,
             {.name = "progress", .help = "Between two lines of progress."});
}

void RunSeeds(const Options& options) {
  const absl::Time start = absl::Now();
  absl::Time next_line = start + options.progress;
  SystemResult total;
  for (uint64_t i = 0; i < options.seeds; ++i) {
    total += SimulateSystem({.seed = options.seed + i,
                             .events = options.events,
                             .trace = options.trace});
    if (absl::Now() < next_line) continue;
    next_line = absl::Now() + options.progress;
    std::cerr << ToString(total) << std::endl;
  }
  std::cout << ToString(total) << " seconds "
            << absl::ToDoubleSeconds(absl::Now() - start)
            << " wrong_tokens 0 leaks 0 hangs 0" << std::endl;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::Options options;
  baton::Flags flags("simulate",
                     "Simulates the whole system; dies of the first wrong "
                     "token, leak or hang, and says how to repeat it.");
  baton::AddFlags(&flags, &options);
  if (const auto code = flags.ParseOrExitCode(
          argc, argv, environ, [] { return absl::OkStatus(); })) {
    return *code;
  }
  baton::RunSeeds(options);
  return 0;
}
