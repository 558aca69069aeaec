#include "server/edge/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/field_error.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

enum class Role { kPrefill, kDecode };

// One flag of each type.
struct Options {
  Role role = Role::kPrefill;
  std::string model;
  uint32_t threads = 2;
  uint64_t seed = 0;
  double rate = 1;
  bool verbose = false;
  absl::Duration grace = absl::Seconds(25);
  ByteSize pool{64 << 20};
  std::vector<std::string> peers;
  std::optional<uint32_t> blocks;
  std::optional<float> temperature;
};

class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() { Declare(); }

  // Flags are parsed once; a test that parses more often declares them anew.
  void Declare() {
    o_ = Options();
    flags_.emplace("batond", "A worker.");
    Flags& flags = *flags_;
    flags.Group("Model");
    flags.AddChoice(&o_.role,
                    {{"prefill", Role::kPrefill}, {"decode", Role::kDecode}},
                    {.name = "role", .help = "Which steps it runs."});
    flags.Add(&o_.model,
              {.name = "model", .help = "Folder.", .required = true});
    flags.Group("Engine");
    flags.Add(&o_.threads,
              {.name = "threads", .help = "Threads.", .min = 1, .max = 64});
    flags.Add(&o_.seed, {.name = "seed", .help = "Seed."});
    flags.Add(&o_.rate, {.name = "rate", .help = "Per second.", .min = 0});
    flags.Add(&o_.verbose, {.name = "verbose", .help = "More."});
    flags.Add(&o_.grace, {.name = "grace", .help = "Time.", .min = 0});
    flags.Add(&o_.pool, {.name = "pool", .help = "Size.", .min = 1});
    flags.Add(&o_.peers, {.name = "peers", .help = "Addresses."});
    flags.Add(&o_.blocks, {.name = "blocks", .help = "Blocks.", .min = 1});
    flags.Add(&o_.temperature, {.name = "temperature", .help = "T."});
  }

  FlagsOutcome Parse(std::vector<std::string> arguments,
                     std::vector<const char*> environment = {}) {
    environment.push_back(nullptr);
    return flags_->Parse(arguments, environment.data(), validate_, check_);
  }

  Options o_;
  std::optional<Flags> flags_;
  std::function<absl::Status()> validate_;
  std::function<absl::Status()> check_;
};

TEST_F(FlagsTest, ReadsEveryTypeInEverySpelling) {
  const FlagsOutcome outcome =
      Parse({"--model", "/m", "--role=decode", "--threads=3",
             "--seed=18446744073709551615", "--rate", "0.5", "--verbose",
             "--grace=1m30s", "--pool=2GiB", "--peers=a:1,b:2", "--peers=c:3",
             "--blocks=9", "--temperature=-0.5"});
  ASSERT_TRUE(outcome.run) << outcome.text;
  EXPECT_EQ(o_.model, "/m");
  EXPECT_EQ(o_.role, Role::kDecode);
  EXPECT_EQ(o_.threads, 3u);
  EXPECT_EQ(o_.seed, UINT64_MAX);
  EXPECT_EQ(o_.rate, 0.5);
  EXPECT_TRUE(o_.verbose);
  EXPECT_EQ(o_.grace, absl::Seconds(90));
  EXPECT_EQ(o_.pool.bytes, uint64_t{2} << 30);
  EXPECT_EQ(o_.peers, (std::vector<std::string>{"a:1", "b:2", "c:3"}));
  EXPECT_EQ(o_.blocks, 9u);
  EXPECT_EQ(o_.temperature, -0.5f);
}

TEST_F(FlagsTest, AbsentFlagsKeepTheirDefaults) {
  ASSERT_TRUE(Parse({"--model=/m"}).run);
  EXPECT_EQ(o_.threads, 2u);
  EXPECT_FALSE(o_.blocks.has_value());
  EXPECT_THAT(flags_->InForce(),
              AllOf(HasSubstr("role=prefill"), HasSubstr("threads=2"),
                    HasSubstr("grace=25s"), HasSubstr("pool=64MiB")));
}

TEST_F(FlagsTest, TheEnvironmentTwinCountsAndTheFlagBeatsIt) {
  const FlagsOutcome outcome =
      Parse({"--threads=4"}, {"BATON_MODEL=/env", "BATON_THREADS=9",
                              "BATON_VERBOSE=true", "PATH=/bin", "BATONX=1"});
  ASSERT_TRUE(outcome.run) << outcome.text;
  EXPECT_EQ(o_.model, "/env");
  EXPECT_EQ(o_.threads, 4u);
  EXPECT_TRUE(o_.verbose);
}

TEST_F(FlagsTest, DashesInNamesAreUnderscores) {
  bool no_cache = false;
  flags_->Add(&no_cache, {.name = "no_prefix_cache", .help = "Off."});
  ASSERT_TRUE(Parse({"--no-prefix-cache", "--model=a-b"}).run);
  EXPECT_TRUE(no_cache);
  EXPECT_EQ(o_.model, "a-b");
}

struct BadCase {
  std::vector<std::string> arguments;
  std::vector<const char*> environment;
  std::string named;
};

TEST_F(FlagsTest, EveryMistakeEndsWithCodeTwoAndTheKeysName) {
  const std::vector<BadCase> cases = {
      {{"--modle=/m"}, {}, "--modle"},
      {{"stray"}, {}, "stray"},
      {{"--threads"}, {}, "--threads"},
      {{"--threads=0"}, {}, "--threads"},
      {{"--threads=65"}, {}, "--threads"},
      {{"--threads=-1"}, {}, "--threads"},
      {{"--threads=two"}, {}, "--threads"},
      {{"--threads=1", "--threads=2"}, {}, "--threads"},
      {{"--threads=4294967296"}, {}, "--threads"},
      {{"--seed=18446744073709551616"}, {}, "--seed"},
      {{"--rate=nan"}, {}, "--rate"},
      {{"--rate=inf"}, {}, "--rate"},
      {{"--rate=-1"}, {}, "--rate"},
      {{"--verbose=maybe"}, {}, "--verbose"},
      {{"--grace=5"}, {}, "--grace"},
      {{"--grace=inf"}, {}, "--grace"},
      {{"--grace=-1s"}, {}, "--grace"},
      {{"--pool=1GB"}, {}, "--pool"},
      {{"--pool=0"}, {}, "--pool"},
      {{"--pool=99999999999GiB"}, {}, "--pool"},
      {{"--pool=-1"}, {}, "--pool"},
      {{"--pool="}, {}, "--pool"},
      {{"--role=both"}, {}, "--role"},
      {{"--blocks=0"}, {}, "--blocks"},
      {{}, {"BATON_MODLE=/m"}, "BATON_MODLE"},
      {{}, {"BATON_model=/m"}, "BATON_model"},
      {{}, {"BATON_=1"}, "BATON_"},
      {{}, {"BATON_THREADS=0"}, "BATON_THREADS"},
      {{}, {"BATON_THREADS"}, "BATON_THREADS"},
  };
  for (const BadCase& bad : cases) {
    Declare();
    std::vector<std::string> arguments = bad.arguments;
    arguments.push_back("--model=/m");
    const FlagsOutcome outcome = Parse(arguments, bad.environment);
    EXPECT_FALSE(outcome.run) << bad.named;
    EXPECT_EQ(outcome.exit_code, 2) << bad.named;
    EXPECT_THAT(outcome.text, HasSubstr(bad.named));
  }
}

TEST_F(FlagsTest, ARequiredFlagThatIsMissingIsNamed) {
  const FlagsOutcome outcome = Parse({});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.text, HasSubstr("--model: required"));
}

TEST_F(FlagsTest, AContradictionIsNamed) {
  validate_ = [] { return FieldError("ep_size", "does not divide"); };
  const FlagsOutcome outcome = Parse({"--model=/m"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.text, HasSubstr("ep_size: does not divide"));
}

TEST_F(FlagsTest, CheckValidatesAndExits) {
  FlagsOutcome outcome = Parse({"--model=/m", "--check"});
  EXPECT_FALSE(outcome.run);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.text, HasSubstr("valid"));
}

TEST_F(FlagsTest, CheckOfABadConfigurationFails) {
  validate_ = [] { return FieldError("ep_size", "does not divide"); };
  EXPECT_EQ(Parse({"--model=/m", "--check"}).exit_code, 2);
}

TEST_F(FlagsTest, CheckAloneLooksAtWhatTheStartWouldFind) {
  check_ = [] { return absl::NotFoundError("/m: no such folder"); };
  EXPECT_TRUE(Parse({"--model=/m"}).run);
  Declare();
  const FlagsOutcome outcome = Parse({"--model=/m", "--check"});
  EXPECT_FALSE(outcome.run);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.text, HasSubstr("/m: no such folder"));
  Declare();
  validate_ = [] { return FieldError("ep_size", "does not divide"); };
  EXPECT_EQ(Parse({"--model=/m", "--check"}).exit_code, 2);
}

TEST_F(FlagsTest, HelpExplainsEveryFlagInGroupsEvenWithoutRequiredOnes) {
  const FlagsOutcome outcome = Parse({"--help"});
  EXPECT_FALSE(outcome.run);
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* expected :
       {"Model:", "Engine:", "--role prefill|decode", "Default: prefill.",
        "--threads N", "Default: 2.", "--grace DURATION", "Default: 25s.",
        "--pool BYTES", "Required.", "BATON_", "--check", "--version"}) {
    EXPECT_THAT(outcome.text, HasSubstr(expected));
  }
  size_t line_start = 0;
  for (size_t end;
       (end = outcome.text.find('\n', line_start)) != std::string::npos;
       line_start = end + 1) {
    EXPECT_LE(end - line_start, 80u) << outcome.text.substr(line_start, 90);
  }
}

TEST_F(FlagsTest, VersionIsPrinted) {
  const FlagsOutcome outcome = Parse({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.text, HasSubstr("batond 0."));
}

// ---- commands
// -----------------------------------------------------------------

class CommandsTest : public ::testing::Test {
 protected:
  FlagsOutcome Parse(std::vector<std::string> arguments,
                     std::vector<const char*> environment = {}) {
    flags_.emplace("baton", "The command line.");
    Flags& generate = flags_->AddCommand("generate", "Streams text.");
    generate.Add(&server_, {.name = "server", .help = "Router."});
    generate.Add(&max_tokens_, {.name = "max_tokens", .help = "Tokens."});
    generate.AddPositional(&prompt_, {.name = "prompt", .help = "Text."});
    Flags& bench = flags_->AddCommand("bench", "Measures.");
    bench.Add(&server_, {.name = "server", .help = "Router."});
    bench.Add(&clients_, {.name = "clients", .help = "Clients."});
    environment.push_back(nullptr);
    return flags_->Parse(arguments, environment.data(), {});
  }

  std::string server_ = "127.0.0.1:8000";
  std::string prompt_;
  std::optional<uint32_t> max_tokens_;
  uint32_t clients_ = 1;
  std::optional<Flags> flags_;
};

TEST_F(CommandsTest, TheGivenCommandReadsItsFlagsAndArguments) {
  ASSERT_TRUE(Parse({"generate", "Once upon", "--max-tokens=8"}).run);
  EXPECT_EQ(flags_->command(), "generate");
  EXPECT_EQ(prompt_, "Once upon");
  EXPECT_EQ(max_tokens_, 8u);
}

TEST_F(CommandsTest, BehindTwoDashesAnArgumentStaysAsItIs) {
  ASSERT_TRUE(Parse({"generate", "--", "--no-flag=a-b"}).run);
  EXPECT_EQ(prompt_, "--no-flag=a-b");
}

TEST_F(CommandsTest, HelpSaysWhereTheFlagsOfACommandAre) {
  EXPECT_THAT(Parse({"--help"}).text, HasSubstr("baton COMMAND --help"));
  EXPECT_THAT(Parse({"bench", "--help"}).text, Not(HasSubstr("COMMAND")));
}

TEST_F(CommandsTest, AMissingArgumentIsExplained) {
  std::string action;
  Flags flags("baton", "");
  flags.AddPositional(&action,
                      {.name = "action", .help = "Say up.", .required = true});
  EXPECT_THAT(flags.Parse({}, nullptr, {}).text,
              HasSubstr("action: required. Say up."));
}

TEST_F(CommandsTest, TheEnvironmentServesEveryCommandThatHasTheFlag) {
  const FlagsOutcome outcome =
      Parse({"bench"}, {"BATON_SERVER=h:1", "BATON_MAX_TOKENS=7"});
  ASSERT_TRUE(outcome.run) << outcome.text;
  EXPECT_EQ(server_, "h:1");
  EXPECT_FALSE(max_tokens_.has_value());
}

TEST_F(CommandsTest, NoneUnknownOrForeignFlagsAreRefused) {
  EXPECT_EQ(Parse({}).exit_code, 2);
  EXPECT_EQ(Parse({"generat"}).exit_code, 2);
  EXPECT_EQ(Parse({"bench", "--max_tokens=8"}).exit_code, 2);
  EXPECT_EQ(Parse({"bench"}, {"BATON_PROMPT=x"}).exit_code, 2);
}

TEST_F(CommandsTest, HelpListsTheCommandsAndEachHasItsOwn) {
  EXPECT_THAT(Parse({"--help"}).text,
              AllOf(HasSubstr("generate"), HasSubstr("Measures.")));
  EXPECT_THAT(Parse({"bench", "--help"}).text,
              AllOf(HasSubstr("baton bench"), HasSubstr("--clients")));
}

}  // namespace
}  // namespace baton
