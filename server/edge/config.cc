#include "server/edge/config.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "server/edge/config_file.h"
#include "server/edge/version.h"

namespace baton {
namespace {

constexpr char kEnvironmentPrefix[] = "BATON_";
constexpr int kExitFailedStart = 1;
constexpr int kExitBadConfiguration = 2;
constexpr size_t kHelpWidth = 80;
constexpr size_t kHelpIndent = 6;
constexpr char kInformation[] = "Information";

std::string EnvironmentName(const std::string& flag) {
  return kEnvironmentPrefix + absl::AsciiStrToUpper(flag);
}

// "--max-x=a-b" to "--max_x=a-b".
std::string WithUnderscores(std::string argument) {
  if (argument.compare(0, 2, "--") != 0) return argument;
  const size_t end = std::min(argument.find('='), argument.size());
  std::replace(argument.begin() + 2, argument.begin() + end, '-', '_');
  return argument;
}

// `text` in lines of kHelpWidth, each indented.
std::string Wrapped(const std::string& text) {
  std::string out;
  std::string line(kHelpIndent, ' ');
  for (const auto word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (line.size() + 1 + word.size() > kHelpWidth) {
      out += line + "\n";
      line.assign(kHelpIndent, ' ');
    }
    if (line.size() > kHelpIndent) line += ' ';
    line.append(word.data(), word.size());
  }
  return out + line + "\n";
}

FlagsOutcome Exit(int exit_code, std::string text) {
  return {.run = false, .exit_code = exit_code, .text = std::move(text)};
}

}  // namespace

struct Flags::Flag {
  FlagSpec spec;
  std::string group;
  std::string type;
  FlagArity arity = FlagArity::kOne;
  Setter set;
  Getter get;
  std::string default_text;

  std::vector<std::string> given;          // Values of the arguments.
  std::optional<std::string> environment;  // The twin's value.
  std::optional<ConfigLine> line;          // Of the file.
  // Once assigned; none: the default.
  struct Source {
    std::string key;     // In an error.
    std::string origin;  // In what --print_config prints.
    std::string text;
  };
  std::optional<Source> source;

  std::string Shown() const {
    return arity == FlagArity::kPositional ? spec.name : "--" + spec.name;
  }
  std::optional<Source> FindSource() const {
    if (!given.empty()) {
      return Source{Shown(), "flag", absl::StrJoin(given, ",")};
    }
    if (environment.has_value()) {
      const std::string key = EnvironmentName(spec.name);
      return Source{key, "env " + key, *environment};
    }
    if (line.has_value()) {
      return Source{line->place + ": " + spec.name, line->place, line->value};
    }
    return std::nullopt;
  }
};

Flags::Flags(std::string program, std::string description)
    : program_(std::move(program)), description_(std::move(description)) {}
Flags::~Flags() = default;

void Flags::Group(std::string title) { group_ = std::move(title); }

void Flags::Add(FlagTarget value, const FlagSpec& spec) {
  AddWord(
      spec, TypeName(value),
      [value, spec](const std::string& text) {
        return ParseFlagValue(text, spec, value);
      },
      [value] { return FormatFlagValue(value); });
  flags_.back()->arity = ArityOf(value);
}

void Flags::AddAddress(std::string* value, const FlagSpec& spec) {
  AddWord(
      spec, "HOST:PORT",
      [value](const std::string& text) {
        *value = text;
        return CheckHostPort(text);
      },
      [value] { return *value; });
}

void Flags::AddPositional(std::string* value, const FlagSpec& spec) {
  Add(value, spec);
  flags_.back()->arity = FlagArity::kPositional;
}

void Flags::AddWord(FlagSpec spec, std::string type, Setter set, Getter get) {
  auto flag = std::make_unique<Flag>();
  flag->spec = std::move(spec);
  flag->group = group_;
  flag->type = std::move(type);
  flag->set = std::move(set);
  flag->default_text = get();
  flag->get = std::move(get);
  flags_.push_back(std::move(flag));
}

Flags& Flags::AddCommand(std::string name, std::string description) {
  auto flags =
      std::make_unique<Flags>(program_ + " " + name, std::move(description));
  commands_.emplace_back(std::move(name), std::move(flags));
  return *commands_.back().second;
}

const std::string& Flags::command() const { return command_; }

Flags::Flag* Flags::Find(const std::string& name) {
  for (const auto& flag : flags_) {
    if (flag->spec.name == name && flag->arity != FlagArity::kPositional) {
      return flag.get();
    }
  }
  return nullptr;
}

Flags::Flag* Flags::NextPositional() {
  for (const auto& flag : flags_) {
    if (flag->arity == FlagArity::kPositional && flag->given.empty()) {
      return flag.get();
    }
  }
  return nullptr;
}

absl::Status Flags::ReadArguments(std::span<const std::string> arguments) {
  bool flags_over = false;  // After a lone "--".
  while (!arguments.empty()) {
    const std::string argument =
        flags_over ? arguments.front() : WithUnderscores(arguments.front());
    arguments = arguments.subspan(1);
    if (!flags_over && argument == "--") {
      flags_over = true;
      continue;
    }
    if (flags_over || argument.compare(0, 2, "--") != 0) {
      Flag* positional = NextPositional();
      if (positional == nullptr) {
        return absl::InvalidArgumentError(argument + ": not expected");
      }
      positional->given.push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals - 2);
    Flag* flag = Find(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError("--" + name +
                                        ": no such flag; --help lists them");
    }
    if (equals != std::string::npos) {
      flag->given.push_back(argument.substr(equals + 1));
    } else if (flag->arity == FlagArity::kSwitch) {
      flag->given.push_back("true");
    } else if (!arguments.empty() &&
               arguments.front().compare(0, 2, "--") != 0) {
      flag->given.push_back(arguments.front());
      arguments = arguments.subspan(1);
    } else {
      return absl::InvalidArgumentError(flag->Shown() + ": has no value");
    }
  }
  return absl::OkStatus();
}

bool Flags::ForEach(const std::string& name,
                    const std::function<void(Flag*)>& take) {
  Flag* const flag = Find(name);
  bool known = flag != nullptr;
  if (known) take(flag);
  for (const auto& [unused, flags] : commands_) {
    known = flags->ForEach(name, take) || known;
  }
  return known;
}

absl::Status Flags::ReadEnvironment(const char* const* environment) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const std::string entry = *environment;
    if (entry.compare(0, std::strlen(kEnvironmentPrefix), kEnvironmentPrefix) !=
        0) {
      continue;
    }
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string key = entry.substr(0, equals);
    const std::string name =
        absl::AsciiStrToLower(key.substr(std::strlen(kEnvironmentPrefix)));
    const std::string value =
        equals < entry.size() ? entry.substr(equals + 1) : "";
    if (EnvironmentName(name) != key ||
        !ForEach(name, [&](Flag* flag) { flag->environment = value; })) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, ": no such key; --help lists them"));
    }
  }
  return absl::OkStatus();
}

absl::Status Flags::ReadFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<ConfigLine> lines, ReadConfigFile(path));
  for (const ConfigLine& line : lines) {
    bool known = false;
    ForEach(line.name, [&](Flag* flag) {
      if (flag->group == kInformation) return;
      flag->line = line;
      known = true;
    });
    if (!known) {
      return absl::InvalidArgumentError(
          absl::StrCat(line.place, ": ", line.name,
                       ": no such key; --help lists the flags, each a key"));
    }
  }
  return absl::OkStatus();
}

absl::Status Flags::Assign() {
  for (const auto& flag : flags_) {
    if (flag->given.size() > 1 && flag->arity != FlagArity::kList) {
      return absl::InvalidArgumentError(flag->Shown() +
                                        ": given more than once");
    }
    flag->source = flag->FindSource();
    if (!flag->source.has_value()) {
      if (!flag->spec.required) continue;
      const bool is_flag = flag->arity != FlagArity::kPositional;
      return absl::InvalidArgumentError(
          flag->Shown() + ": required" +
          (is_flag ? "" : ". " + flag->spec.help));
    }
    const Flag::Source& source = *flag->source;
    if (absl::Status status = flag->set(source.text); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          source.key, ": ", status.message(), ", not \"", source.text, "\""));
    }
  }
  return absl::OkStatus();
}

absl::Status Flags::WithPlace(const absl::Status& status) {
  const Flag* const flag = Find(ErrorField(status).value_or(""));
  if (flag == nullptr || !flag->source.has_value() || !flag->line.has_value() ||
      flag->source->origin != flag->line->place) {
    return status;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag->line->place, ": ", status.message()));
}

void Flags::AddBuiltIns() {
  Group(kInformation);
  Add(&help_, {.name = "help", .help = "Print this and exit."});
  Add(&version_, {.name = "version", .help = "Print the version and exit."});
  if (commands_.empty()) {
    Add(&config_, {.name = "config",
                   .help = "A file with a line \"flag: value\" for each flag "
                           "that it sets; # begins a comment."});
    Add(&print_config_,
        {.name = "print_config",
         .help = "Validate the configuration, print every value with its "
                 "origin, as a file for --config, and exit."});
    Add(&check_,
        {.name = "check", .help = "Validate the configuration and exit."});
  }
  for (const auto& [unused, flags] : commands_) flags->AddBuiltIns();
}

bool Flags::Given(const std::string& name) {
  const Flag* flag = Find(name);
  return flag != nullptr && !flag->given.empty();
}

// The command that the first argument names, or this if there are none.
absl::StatusOr<Flags*> Flags::Choose(std::span<const std::string> arguments) {
  if (commands_.empty()) return this;
  const std::string word = arguments.empty() ? "" : arguments.front();
  for (const auto& [name, flags] : commands_) {
    if (name == word) {
      command_ = name;
      return flags.get();
    }
  }
  if (word == "--help" || word == "--version") return this;
  return absl::InvalidArgumentError(
      word.empty() ? "a command is needed; --help lists them"
                   : word + ": no such command; --help lists them");
}

absl::Status Flags::ReadAll(Flags* active,
                            std::span<const std::string> arguments,
                            const char* const* environment) {
  RETURN_IF_ERROR(active->ReadArguments(arguments));
  if (active->Given("help") || active->Given("version")) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(ReadEnvironment(environment));
  const Flag* const config = active->Find("config");
  if (const auto file = config->FindSource()) {
    RETURN_IF_ERROR(ReadFile(file->text));
  }
  return active->Assign();
}

std::optional<std::string> Flags::TextToPrint() {
  if (Given("help")) return Help();
  if (Given("version")) return program_ + " " + kBatonVersion + "\n";
  return std::nullopt;
}

FlagsOutcome Flags::Parse(std::span<const std::string> arguments,
                          const char* const* environment,
                          const std::function<absl::Status()>& validate,
                          const std::function<absl::Status()>& check) {
  AddBuiltIns();
  const auto refusal = [this](const absl::Status& status,
                              int code = kExitBadConfiguration) {
    return Exit(code, absl::StrCat(program_, ": ", status.message(), "\n"));
  };
  const absl::StatusOr<Flags*> chosen = Choose(arguments);
  if (!chosen.ok()) return refusal(chosen.status());
  Flags* const active = *chosen;
  absl::Status status =
      ReadAll(active, arguments.subspan(active == this ? 0 : 1), environment);
  if (!status.ok()) return refusal(status);
  if (auto text = active->TextToPrint()) return Exit(0, *std::move(text));
  if (validate) status = active->WithPlace(validate());
  if (!status.ok()) return refusal(status);
  if (active->check_ && check) status = check();
  if (!status.ok()) return refusal(status, kExitFailedStart);
  if (active->print_config_) return Exit(0, active->ConfigInForce());
  if (!active->check_) return {.run = true};
  return Exit(0, program_ + ": configuration is valid\n");
}

std::optional<int> Flags::ParseOrExitCode(
    int argc, char** argv, char** environment,
    const std::function<absl::Status()>& validate,
    const std::function<absl::Status()>& check) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1),
                                           argv + argc);
  const FlagsOutcome outcome = Parse(arguments, environment, validate, check);
  if (outcome.run) return std::nullopt;
  std::fputs(outcome.text.c_str(), outcome.exit_code == 0 ? stdout : stderr);
  return outcome.exit_code;
}

std::string Flags::InForce() const {
  std::string out;
  for (const auto& flag : flags_) {
    if (flag->group == kInformation) continue;
    absl::StrAppend(&out, out.empty() ? "" : " ", flag->spec.name, "=",
                    flag->get());
  }
  return out;
}

std::string Flags::ConfigInForce() const {
  std::string out = absl::StrCat("# ", program_, " ", kBatonVersion, "\n");
  std::string group;
  for (const auto& flag : flags_) {
    if (flag->group == kInformation || flag->arity == FlagArity::kPositional) {
      continue;
    }
    if (flag->group != group) absl::StrAppend(&out, "\n# ", flag->group, "\n");
    group = flag->group;
    const bool is_set = flag->source.has_value();
    const std::string value = is_set ? flag->source->text : flag->get();
    // What has no value by default has no line that says so.
    absl::StrAppend(&out, !is_set && value.empty() ? "# " : "", flag->spec.name,
                    ": ", FormatConfigValue(value), "  # ",
                    is_set ? flag->source->origin : "default", "\n");
  }
  return out;
}

std::string Flags::Help() const {
  std::string out = description_ + "\n\nUsage: " + program_;
  out += commands_.empty() ? " [flags]" : " COMMAND [flags]";
  for (const auto& flag : flags_) {
    if (flag->arity == FlagArity::kPositional) {
      absl::StrAppend(&out, flag->spec.required ? " " : " [",
                      absl::AsciiStrToUpper(flag->spec.name),
                      flag->spec.required ? "" : "]");
    }
  }
  out +=
      "\nEvery --flag has a twin BATON_FLAG in the environment, and a line in "
      "the file\nof --config. The flag wins, then the environment.\n";
  for (const auto& [name, flags] : commands_) {
    absl::StrAppend(
        &out, "\n  ", name, "\n",
        Wrapped(flags->description_.substr(0, flags->description_.find('\n'))));
  }
  if (!commands_.empty()) {
    absl::StrAppend(&out, "\n", program_,
                    " COMMAND --help lists the flags of a command.\n");
  }
  std::string group;
  for (const auto& flag : flags_) {
    if (flag->group != group) absl::StrAppend(&out, "\n", flag->group, ":\n");
    group = flag->group;
    absl::StrAppend(&out, "  ", flag->Shown(), flag->type.empty() ? "" : " ",
                    flag->type, "\n");
    std::string text = flag->spec.help;
    if (flag->spec.required) text += " Required.";
    if (!flag->default_text.empty() && flag->group != kInformation) {
      absl::StrAppend(&text, " Default: ", flag->default_text, ".");
    }
    out += Wrapped(text);
  }
  return out;
}

}  // namespace baton
