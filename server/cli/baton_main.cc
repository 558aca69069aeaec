// The command line: asks a router, measures it, or runs a whole Baton locally.
#include <unistd.h>

#include <iostream>

#include "base/field_error.h"
#include "server/cli/bench.h"
#include "server/cli/chat.h"
#include "server/cli/console.h"
#include "server/cli/drain.h"
#include "server/cli/generate.h"
#include "server/cli/health.h"
#include "server/cli/local_up.h"
#include "server/cli/top.h"
#include "server/edge/config.h"

int main(int argc, char** argv) {
  baton::Flags flags(
      "baton",
      "Baton's command line. Exit codes: 0 done, 1 a request failed, 2 usage.");
  baton::GenerateOptions generate;
  baton::ChatOptions chat;
  baton::BenchOptions bench;
  baton::DrainOptions drain;
  baton::HealthOptions health;
  baton::TopOptions top;
  baton::LocalUpOptions local_up;
  std::string local_action;
  AddGenerateFlags(
      flags.AddCommand("generate", "Streams the text that follows a prompt."),
      &generate);
  AddChatFlags(flags.AddCommand("chat", "A conversation with the model."),
               &chat);
  AddBenchFlags(flags.AddCommand("bench", baton::kBenchDescription), &bench);
  AddDrainFlags(flags.AddCommand("drain", baton::kDrainDescription), &drain);
  AddHealthFlags(
      flags.AddCommand("health", "Asks servers whether they are serving."),
      &health);
  AddTopFlags(flags.AddCommand("top", "What workers do, live: a line a rank."),
              &top);
  baton::Flags& local = flags.AddCommand(
      "local", "Runs workers and a router on this machine until Ctrl-C.");
  local.AddPositional(&local_action,
                      {.name = "action",
                       .help = "The one word up: baton local up --model=...",
                       .required = true});
  AddLocalUpFlags(local, &local_up);

  const auto validate = [&] {
    if (flags.command() == "generate") return ValidateGenerate(generate);
    if (flags.command() == "chat") return ValidateChat(chat);
    if (flags.command() == "bench") return ValidateBench(bench);
    if (flags.command() == "drain") return ValidateDrain(drain);
    if (flags.command() == "top") return ValidateTop(top);
    if (flags.command() != "local") return absl::OkStatus();
    if (local_action != "up") {
      return baton::FieldError("local", "say: baton local up");
    }
    return ValidateLocalUp(local_up);
  };
  if (const auto code = flags.ParseOrExitCode(argc, argv, environ, validate)) {
    return *code;
  }
  const baton::Console console{std::cin, std::cout, std::cerr};
  const std::string& command = flags.command();
  if (command == "generate") return RunGenerate(generate, console);
  if (command == "chat") return RunChat(chat, console);
  if (command == "bench") return RunBench(bench, console);
  if (command == "drain") return RunDrain(drain, console);
  if (command == "health") return RunHealth(health, console);
  top.terminal_size = baton::StdoutTerminal();
  if (command == "top") return RunTop(top, console);
  return RunLocalUp(local_up, console);
}
