#include "server/edge/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/field_error.h"
#include "server/edge/config.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ParseConfigTest, ReadsNamesValuesAndPlaces) {
  const auto lines = ParseConfig(
      "# All of it.\n\nrole: decode\r\nmax-tokens:   8 # few\n"
      "  # indented comment\npeers:\ta:1,[::1]:2\t# two\n"
      "text: \"a \\\"b\\\" \\\\ # c\\n\\td\"  # quoted\nempty: \"\"\nurl: a#b",
      "f.yaml");
  ASSERT_TRUE(lines.ok()) << lines.status();
  const std::vector<std::array<std::string, 3>> expected = {
      {"role", "decode", "f.yaml:3"},
      {"max_tokens", "8", "f.yaml:4"},
      {"peers", "a:1,[::1]:2", "f.yaml:6"},
      {"text", "a \"b\" \\ # c\n\td", "f.yaml:7"},
      {"empty", "", "f.yaml:8"},
      {"url", "a#b", "f.yaml:9"}};
  ASSERT_EQ(lines->size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ((*lines)[i].name, expected[i][0]);
    EXPECT_EQ((*lines)[i].value, expected[i][1]);
    EXPECT_EQ((*lines)[i].place, expected[i][2]);
  }
}

TEST(ParseConfigTest, EveryMistakeNamesItsPlaceAndKey) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"role decode", "f:1: must be \"name: value\""},
      {" role: decode", "f:1: must be"},
      {"- a", "f:1: must be"},
      {"---", "f:1: must be"},
      {": x", "f:1: must be"},
      {"Role: x", "f:1: must be"},
      {"\n\nrole:", "f:3: role: has no value"},
      {"role: # none", "f:1: role: has no value"},
      {"role:decode", "f:1: role: needs a blank"},
      {"role: 'decode'", "f:1: role: means something else in YAML"},
      {"peers: [a, b]", "f:1: peers: means something else in YAML"},
      {"text: |", "f:1: text: means something else in YAML"},
      {"text: \"abc", "f:1: text: has no closing quotes"},
      {"text: \"abc\\", "f:1: text: has a backslash"},
      {"text: \"a\\c\"", "f:1: text: has a backslash"},
      {"text: \"a\" b", "f:1: text: has text behind its quotes"},
      {"a_b: 1\n#\na-b: 2", "f:3: a_b: is also at f:1"}};
  for (const auto& [text, problem] : cases) {
    const auto lines = ParseConfig(text, "f");
    ASSERT_FALSE(lines.ok()) << text;
    EXPECT_THAT(std::string(lines.status().message()), HasSubstr(problem))
        << text;
  }
}

TEST(ParseConfigTest, WhatIsFormattedIsReadBack) {
  for (const std::string value :
       {"", "plain", "1m30s", "-0.5", " a", "a ", "a # b", "a: b", "a:", "'a'",
        "\"", "\\", "a\nb\tc", "[::1]:1", "# a", "a,b\\,c", "{}", "\x7f"}) {
    const auto lines =
        ParseConfig("v: " + FormatConfigValue(value) + "  # default\n", "f");
    ASSERT_TRUE(lines.ok()) << lines.status();
    EXPECT_EQ((*lines)[0].value, value);
  }
}

TEST(ParseConfigTest, AFileThatCannotBeReadOrIsTooLongIsNamed) {
  const std::string folder = ::testing::TempDir();
  for (const std::string& path : {folder + "no-such-file", folder}) {
    const auto lines = ReadConfigFile(path);
    ASSERT_FALSE(lines.ok());
    EXPECT_THAT(std::string(lines.status().message()), HasSubstr(path));
  }
  const std::string path = folder + "long.yaml";
  std::ofstream(path) << "# " << std::string((1 << 20) - 2, 'x');
  EXPECT_TRUE(ReadConfigFile(path).ok());
  std::ofstream(path) << "# " << std::string((1 << 20) - 1, 'x');
  EXPECT_FALSE(ReadConfigFile(path).ok());
}

// ---- files as a source of flags ---------------------------------------------

class ConfigFlagTest : public ::testing::Test {
 protected:
  struct Options {
    std::string model;
    uint32_t threads = 2;
    double rate = 1;
    bool verbose = false;
    absl::Duration grace = absl::Seconds(25);
    std::vector<std::string> peers;
    std::optional<uint32_t> blocks;

    bool operator==(const Options&) const = default;
  };

  ConfigFlagTest() : path_(::testing::TempDir() + "flags.yaml") {}

  FlagsOutcome Parse(std::vector<std::string> arguments,
                     std::vector<const char*> environment = {}) {
    o_ = Options();
    Flags flags("batond", "A worker.");
    flags.Group("Model");
    flags.Add(&o_.model, {.name = "model", .help = "M.", .required = true});
    flags.Group("Engine");
    flags.Add(&o_.threads, {.name = "threads", .help = "T.", .max = 64});
    flags.Add(&o_.rate, {.name = "rate", .help = "R."});
    flags.Add(&o_.verbose, {.name = "verbose", .help = "V."});
    flags.Add(&o_.grace, {.name = "grace", .help = "G."});
    flags.Add(&o_.peers, {.name = "peers", .help = "P."});
    flags.Add(&o_.blocks, {.name = "blocks", .help = "B."});
    environment.push_back(nullptr);
    return flags.Parse(arguments, environment.data(), validate_);
  }

  FlagsOutcome ParseFile(const std::string& text,
                         std::vector<std::string> arguments = {},
                         std::vector<const char*> environment = {}) {
    std::ofstream(path_) << text;
    arguments.push_back("--config=" + path_);
    return Parse(std::move(arguments), std::move(environment));
  }

  const std::string path_;
  Options o_;
  std::function<absl::Status()> validate_;
};

TEST_F(ConfigFlagTest, AFlagBeatsTheEnvironmentThatTheFileThatTheDefault) {
  const FlagsOutcome outcome = ParseFile(
      "model: /file\nthreads: 3\nrate: 0.25\nverbose: true\ngrace: 1m30s\n"
      "peers: a:1,b:2\n",
      {"--threads=5"}, {"BATON_THREADS=4", "BATON_RATE=0.5"});
  ASSERT_TRUE(outcome.run) << outcome.text;
  EXPECT_EQ(o_.model, "/file");
  EXPECT_EQ(o_.threads, 5u);
  EXPECT_EQ(o_.rate, 0.5);
  EXPECT_TRUE(o_.verbose);
  EXPECT_EQ(o_.grace, absl::Seconds(90));
  EXPECT_EQ(o_.peers, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_FALSE(o_.blocks.has_value());
}

TEST_F(ConfigFlagTest, TheEnvironmentMayNameTheFile) {
  std::ofstream(path_) << "model: /file\n";
  const std::string key = "BATON_CONFIG=" + path_;
  EXPECT_TRUE(Parse({}, {key.c_str()}).run);
  EXPECT_EQ(o_.model, "/file");
}

TEST_F(ConfigFlagTest, EveryMistakeInAFileEndsWithCodeTwoPlaceAndKey) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"modle: /m", ":1: modle: no such key"},
      {"config: other", ":1: config: no such key"},
      {"check: true", ":1: check: no such key"},
      {"model: /m\nthreads: 65", ":2: threads: must be at most 64, not \"65\""},
      {"model: /m\n\nverbose: yes", ":3: verbose: must be true or false"},
      {"model: /m\nmodel: /n", ":2: model: is also at"},
      {"threads: 3", "--model: required"}};
  for (const auto& [text, problem] : cases) {
    const FlagsOutcome outcome = ParseFile(text);
    EXPECT_EQ(outcome.exit_code, 2) << text;
    EXPECT_FALSE(outcome.run);
    EXPECT_THAT(outcome.text, HasSubstr(problem));
  }
  const FlagsOutcome outcome = Parse({"--config=/no/such/file"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.text, HasSubstr("/no/such/file: No such file"));
}

TEST_F(ConfigFlagTest, AContradictionNamesTheLineItIsAbout) {
  validate_ = [] { return FieldError("threads", "contradicts --rate"); };
  EXPECT_THAT(ParseFile("model: /m\nthreads: 3").text,
              HasSubstr(path_ + ":2: threads: contradicts --rate"));
  EXPECT_THAT(ParseFile("model: /m\nthreads: 3", {"--threads=4"}).text,
              HasSubstr("batond: threads: contradicts --rate"));
}

TEST_F(ConfigFlagTest, PrintConfigSaysEveryOriginAndIsReadBackTheSame) {
  const FlagsOutcome printed = ParseFile(
      "model: \"/a # b\"\nrate: 0.123456789\nthreads: 3\n",
      {"--peers=a:1", "--peers=b:2", "--print_config"}, {"BATON_GRACE=90s"});
  EXPECT_EQ(printed.exit_code, 0);
  EXPECT_FALSE(printed.run);
  const Options before = o_;
  EXPECT_THAT(printed.text,
              AllOf(HasSubstr("model: \"/a # b\"  # " + path_ + ":1\n"),
                    HasSubstr("\nrate: 0.123456789  # " + path_ + ":2\n"),
                    HasSubstr("\ngrace: 90s  # env BATON_GRACE\n"),
                    HasSubstr("\npeers: a:1,b:2  # flag\n"),
                    HasSubstr("\nverbose: false  # default\n"),
                    HasSubstr("\n# blocks: \"\"  # default\n"),
                    HasSubstr("# Engine\n"), Not(HasSubstr("config:"))));
  ASSERT_TRUE(ParseFile(printed.text).run);
  EXPECT_EQ(o_, before);
}

TEST_F(ConfigFlagTest, PrintConfigValidatesFirst) {
  EXPECT_EQ(ParseFile("threads: 3", {"--print_config"}).exit_code, 2);
  validate_ = [] { return FieldError("threads", "is odd"); };
  EXPECT_EQ(ParseFile("model: /m", {"--print_config"}).exit_code, 2);
}

TEST(CommandConfigTest, AFileServesEveryCommandThatHasTheFlag) {
  const std::string path = ::testing::TempDir() + "commands.yaml";
  std::ofstream(path) << "server: h:1\nclients: 8\n";
  std::string server = "127.0.0.1:1";
  uint32_t clients = 1;
  Flags flags("baton", "The command line.");
  flags.AddCommand("generate", "Streams.")
      .Add(&server, {.name = "server", .help = "S."});
  flags.AddCommand("bench", "Measures.")
      .Add(&clients, {.name = "clients", .help = "C."});
  const std::vector<std::string> arguments = {"generate", "--config", path};
  const FlagsOutcome outcome = flags.Parse(arguments, nullptr, {});
  ASSERT_TRUE(outcome.run) << outcome.text;
  EXPECT_EQ(server, "h:1");
  EXPECT_EQ(clients, 1u);
}

}  // namespace
}  // namespace baton
