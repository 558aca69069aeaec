// Runs seeds of the engine simulator.
#include <unistd.h>

#include <cstdint>
#include <iostream>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/edge/config.h"
#include "tests/simulation/simulation.h"

namespace baton {
namespace {

struct Options {
  uint64_t seed = 1;
  uint64_t seeds = 1;
  uint32_t steps = 1000;
  uint32_t depth = 0;
  absl::Duration progress = absl::Seconds(10);
};

void AddFlags(Flags* flags, Options* o) {
  flags->Add(&o->seed, {.name = "seed", .help = "The first seed."});
  flags->Add(
      &o->seeds,
      {.name = "seeds", .help = "So many, one after the other.", .min = 1});
  flags->Add(&o->steps, {.name = "steps",
                         .help = "Committed steps of a seed, at each depth.",
                         .min = 1});
  flags->Add(&o->depth,
             {.name = "depth",
              .help = "Of the pipeline. 0: 1, 2 and 3, and their answers "
                      "compared.",
              .max = 3});
  flags->Add(&o->progress,
             {.name = "progress", .help = "Between two lines of progress."});
}

void RunSeeds(const Options& options) {
  const absl::Time start = absl::Now();
  absl::Time next_line = start + options.progress;
  SimulationResult total;
  for (uint64_t i = 0; i < options.seeds; ++i) {
    total += Simulate({.seed = options.seed + i,
                       .steps = options.steps,
                       .depth = options.depth});
    if (absl::Now() < next_line) continue;
    next_line = absl::Now() + options.progress;
    std::cerr << "seeds " << i + 1 << " of " << options.seeds << " "
              << ToString(total) << std::endl;
  }
  std::cout << "seeds " << options.seeds << " " << ToString(total)
            << " seconds " << absl::ToDoubleSeconds(absl::Now() - start)
            << " differences 0 leaks 0" << std::endl;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  baton::Options options;
  baton::Flags flags("simulate",
                     "Simulates the engine; dies of the first difference, "
                     "leak or broken invariant, and says how to repeat it.");
  baton::AddFlags(&flags, &options);
  if (const auto code = flags.ParseOrExitCode(
          argc, argv, environ, [] { return absl::OkStatus(); })) {
    return *code;
  }
  baton::RunSeeds(options);
  return 0;
}
