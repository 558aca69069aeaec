// The flags of a process, each with a twin in the environment, and a line in
// the file of --config (config_file.h).
//
//   Flags flags("batond", "A Baton worker: token ids in, token ids out.");
//   flags.Group("Engine");
//   flags.Add(&o.threads, {.name = "threads", .help = "Kernel threads.",
//                          .min = 1, .max = 256});
//   if (auto code = flags.ParseOrExitCode(argc, argv, environ,
//                                         [&] { return Validate(o); }))
//     return *code;
//
// --threads=2, --threads 2, BATON_THREADS=2 and a line "threads: 2" say the
// same; a flag beats the environment, and that the file; dashes in a name are
// underscores. A value that begins with "--" needs the first spelling. An
// unknown flag, BATON_ key or line, a line twice, a bad value or what
// `validate` refuses ends the start with exit code 2 and the key's name, of a
// line also its place. --help and --version come with every Flags, and without
// commands --config, --print_config and --check. --print_config prints, after
// all that, every value and whence it comes, as a file for --config. --check
// also asks `check`, which looks at what the start would find: its refusal has
// exit code 1, as a failed start.
#ifndef BATON_SERVER_EDGE_CONFIG_H_
#define BATON_SERVER_EDGE_CONFIG_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/edge/flag_value.h"

namespace baton {

// What Parse decided. Not `run`: print `text` (to stdout if exit_code is 0,
// else to stderr) and exit.
struct FlagsOutcome {
  bool run = false;
  int exit_code = 0;
  std::string text = {};
};

// Owned by main; thread-compatible. Values are borrowed and outlive the Flags;
// what they hold when added is the default.
class Flags {
 public:
  Flags(std::string program, std::string description);
  ~Flags();

  // The heading in --help of the flags that follow.
  void Group(std::string title);

  void Add(FlagTarget value, const FlagSpec& spec);

  // One of several words.
  template <typename E>
  void AddChoice(E* value, std::vector<std::pair<std::string, E>> choices,
                 FlagSpec spec);

  // Where to listen: see CheckHostPort.
  void AddAddress(std::string* value, const FlagSpec& spec);

  // An argument that is no flag; no twin. In the order of the calls.
  void AddPositional(std::string* value, const FlagSpec& spec);

  // A subcommand with flags of its own: the first argument must name one; with
  // commands, this has no flags but --help and --version. Commands share the
  // environment's names and the file's: BATON_SERVER serves all that have
  // --server.
  Flags& AddCommand(std::string name, std::string description);
  // The one that was given.
  const std::string& command() const;

  // `arguments` without the program's name; `environment` as main has it.
  // `validate` looks for contradictions: FieldError(flag, problem).
  FlagsOutcome Parse(std::span<const std::string> arguments,
                     const char* const* environment,
                     const std::function<absl::Status()>& validate,
                     const std::function<absl::Status()>& check = {});
  // The same, printing; nullopt: go on.
  std::optional<int> ParseOrExitCode(
      int argc, char** argv, char** environment,
      const std::function<absl::Status()>& validate,
      const std::function<absl::Status()>& check = {});

  // "model=... role=prefill ...": every flag's value, for the first log line.
  std::string InForce() const;

 private:
  struct Flag;
  using Setter = std::function<absl::Status(const std::string& text)>;
  using Getter = std::function<std::string()>;

  void AddWord(FlagSpec spec, std::string type, Setter set, Getter get);
  void AddBuiltIns();
  absl::StatusOr<Flags*> Choose(std::span<const std::string> arguments);
  Flag* Find(const std::string& name);
  Flag* NextPositional();
  bool Given(const std::string& name);
  absl::Status ReadArguments(std::span<const std::string> arguments);
  absl::Status ReadEnvironment(const char* const* environment);
  absl::Status ReadFile(const std::string& path);
  // Calls it with each flag of this name, here and in commands; false: none.
  bool ForEach(const std::string& name, const std::function<void(Flag*)>& take);
  absl::Status Assign();
  // All three into `active`, this or a command of it, unless it only informs.
  absl::Status ReadAll(Flags* active, std::span<const std::string> arguments,
                       const char* const* environment);
  // What --help or --version asks for.
  std::optional<std::string> TextToPrint();
  // `status`, with the place of the line that it is about, if it is about one.
  absl::Status WithPlace(const absl::Status& status);
  std::string ConfigInForce() const;
  std::string Help() const;

  const std::string program_;
  const std::string description_;
  std::string group_ = "General";
  std::vector<std::unique_ptr<Flag>> flags_;
  std::vector<std::pair<std::string, std::unique_ptr<Flags>>> commands_;
  std::string command_;
  bool help_ = false;
  bool version_ = false;
  std::string config_;
  bool print_config_ = false;
  bool check_ = false;
};

template <typename E>
void Flags::AddChoice(E* value, std::vector<std::pair<std::string, E>> choices,
                      FlagSpec spec) {
  std::string type;
  for (const auto& [word, unused] : choices) {
    type += (type.empty() ? "" : "|") + word;
  }
  AddWord(
      std::move(spec), type,
      [value, choices, type](const std::string& text) {
        for (const auto& [word, choice] : choices) {
          if (word != text) continue;
          *value = choice;
          return absl::OkStatus();
        }
        return absl::InvalidArgumentError("must be " + type);
      },
      [value, choices] {
        for (const auto& [word, choice] : choices) {
          if (choice == *value) return word;
        }
        return std::string();
      });
}

}  // namespace baton

#endif  // BATON_SERVER_EDGE_CONFIG_H_
