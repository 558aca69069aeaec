#include "tests/simulation/system/system_simulation.h"

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/text/tokenizer.h"
#include "tests/simulation/command_on_death.h"
#include "tests/simulation/system/system_world.h"

namespace baton {
namespace {

const Tokenizer& DemoTokenizer() {
  static const Tokenizer* const tokenizer =
      Tokenizer::Load("models/tiny-deepseek-v3")->release();
  return *tokenizer;
}

std::string CommandOf(const SystemSimulationOptions& options) {
  return absl::StrCat(
      "failed: bazel run //tests/simulation/system:simulate -- --seed=",
      options.seed, " --events=", options.events, " --trace");
}

}  // namespace

SystemResult SimulateSystem(const SystemSimulationOptions& options) {
  PrintOnDeath(CommandOf(options));
  std::optional<HeldStderr> held;
  if (!options.trace) held.emplace();
  SystemOptions system = RandomSystem(options.seed);
  system.corrupts_kv = options.corrupt_kv;
  SystemWorld world(system, &DemoTokenizer(), options.trace);
  world.Run(options.events);
  return world.result();
}

}  // namespace baton
