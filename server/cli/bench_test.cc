// `baton bench`, end to end, against a router played by this test.
#include "server/cli/bench.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/field_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/cli/fake_router_for_test.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

using BenchTest = FakeRouterTest;

// Waits to be killed.
pid_t StartProcess() {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  execlp("cat", "cat", "/dev/zero", nullptr);
  _exit(1);
}

TEST_F(BenchTest, BenchMeasuresEachLevel) {
  BenchOptions options;
  options.router = served_.endpoint;
  options.clients = {"1", "3"};
  options.requests = 7;
  options.prompt_tokens = 4;
  options.max_tokens = 5;
  options.pids = {std::to_string(getpid())};
  options.json_out = ::testing::TempDir() + "bench.json";
  EXPECT_EQ(RunBench(options, console()), kExitOk);
  EXPECT_THAT(out_.str(), HasSubstr("tokens/s"));
  nlohmann::json json;
  std::ifstream(options.json_out) >> json;
  ASSERT_EQ(json["levels"].size(), 2u);
  EXPECT_EQ(json["levels"][1]["clients"], 3);
  EXPECT_EQ(json["levels"][1]["requests"], 7);
  EXPECT_EQ(json["levels"][1]["output_tokens"], 35);
  EXPECT_GT(json["levels"][1]["servers"][0]["resident_bytes"], 0);

  const auto requests = router_.requests();
  ASSERT_EQ(requests.size(), 14u);
  for (const v1::GenerateRequest& request : requests) {
    EXPECT_EQ(request.prompt().token_ids().ids_size(), 4);
    EXPECT_TRUE(request.stopping().ignore_eos());
    for (const uint32_t id : request.prompt().token_ids().ids()) {
      EXPECT_GE(id, 16u);
      EXPECT_LT(id, 100u);
    }
  }
  EXPECT_NE(requests[0].prompt().SerializeAsString(),
            requests[1].prompt().SerializeAsString());
}

TEST_F(BenchTest, AProcessThatEndsDuringTheBenchLosesNoReport) {
  const pid_t child = StartProcess();
  ASSERT_GT(child, 0);
  router_.OnRequest([child] {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  });
  BenchOptions options;
  options.router = served_.endpoint;
  options.clients = {"1", "2"};
  options.requests = 2;
  options.pids = {std::to_string(getpid()), std::to_string(child)};
  options.json_out = ::testing::TempDir() + "bench_ended.json";
  EXPECT_EQ(RunBench(options, console()), kExitOk) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("process " + std::to_string(child) + " ("));
  nlohmann::json json;
  std::ifstream(options.json_out) >> json;
  ASSERT_EQ(json["levels"].size(), 2u);
  for (const auto& level : json["levels"]) {
    EXPECT_EQ(level["requests"], 2);
    ASSERT_EQ(level["servers"].size(), 1u);
    EXPECT_EQ(level["servers"][0]["pid"], getpid());
  }
  // It is gone before the next bench.
  EXPECT_EQ(RunBench(options, console()), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("no process has the id"));
}

TEST_F(BenchTest, BenchCountsTheTokensOfAllSamples) {
  BenchOptions options;
  options.router = served_.endpoint;
  options.clients = {"2"};
  options.requests = 3;
  options.max_tokens = 5;
  options.n = 4;
  options.json_out = ::testing::TempDir() + "samples.json";
  EXPECT_EQ(RunBench(options, console()), kExitOk);
  nlohmann::json json;
  std::ifstream(options.json_out) >> json;
  EXPECT_EQ(json["n"], 4);
  EXPECT_EQ(json["levels"][0]["requests"], 3);
  EXPECT_EQ(json["levels"][0]["output_tokens"], 3 * 4 * 5);
  EXPECT_EQ(router_.requests().at(0).sampling().n(), 4u);
}

TEST_F(BenchTest, BenchRefusesContradictions) {
  const auto refused = [](void (*change)(BenchOptions&)) {
    BenchOptions options;
    change(options);
    return ErrorField(ValidateBench(options)).value_or("-");
  };
  EXPECT_EQ(refused([](BenchOptions&) {}), "-");
  EXPECT_EQ(refused([](BenchOptions& o) {
              o.clients = {"1"};
              o.rate = {"1"};
            }),
            "clients");
  EXPECT_EQ(refused([](BenchOptions& o) {
              o.clients = {"1"};
              o.trace = "t";
            }),
            "clients");
  EXPECT_EQ(refused([](BenchOptions& o) { o.svg_out = "x.svg"; }), "svg_out");
  EXPECT_EQ(refused([](BenchOptions& o) { o.router = "localhost"; }), "router");
}

TEST_F(BenchTest, BenchFindsOutAtTheStartWhatItCannotWrite) {
  BenchOptions options;
  options.json_out = "/nowhere/at/all";
  EXPECT_EQ(ErrorField(ValidateBench(options)), "json_out");
  options.json_out = "";
  options.sweep = true;
  options.svg_out = "/nowhere/at/all";
  EXPECT_EQ(ErrorField(ValidateBench(options)), "svg_out");
  options.svg_out = ::testing::TempDir() + "checked.svg";
  EXPECT_TRUE(ValidateBench(options).ok());
  EXPECT_FALSE(std::ifstream(*options.svg_out).is_open())
      << "nothing is left of the check";
  std::ofstream(*options.svg_out) << "older";
  EXPECT_TRUE(ValidateBench(options).ok());
  std::stringstream kept;
  kept << std::ifstream(*options.svg_out).rdbuf();
  EXPECT_EQ(kept.str(), "older");
}

TEST_F(BenchTest, AnOpenLoopSendsAtItsRateAndDrawsTheSweep) {
  BenchOptions options;
  options.router = served_.endpoint;
  options.rate = {"500", "1000"};
  options.requests = 10;
  options.prompt_tokens = 4;
  options.max_tokens = 5;
  options.sweep = true;
  options.svg_out = ::testing::TempDir() + "sweep.svg";
  options.json_out = ::testing::TempDir() + "open.json";
  EXPECT_EQ(RunBench(options, console()), kExitOk);
  nlohmann::json json;
  std::ifstream(options.json_out) >> json;
  ASSERT_EQ(json["levels"].size(), 2u);
  EXPECT_EQ(json["levels"][1]["rate"], 1000);
  EXPECT_EQ(json["levels"][1]["requests"], 10);
  EXPECT_GT(json["levels"][1]["input_tokens_per_second"], 0);
  std::stringstream svg;
  svg << std::ifstream(*options.svg_out).rdbuf();
  EXPECT_THAT(svg.str(), HasSubstr("<title>1000/s: "));
  EXPECT_THAT(err_.str(), HasSubstr("wrote " + *options.svg_out));
  EXPECT_EQ(router_.requests().size(), 20u);
}

TEST_F(BenchTest, ATraceGivesTimesAndLengths) {
  BenchOptions options;
  options.router = served_.endpoint;
  options.trace = ::testing::TempDir() + "trace.csv";
  std::ofstream(options.trace) << "TIMESTAMP,ContextTokens,GeneratedTokens\n"
                                  "2023-11-16 18:17:03.97,7,3\n"
                                  "2023-11-16 18:18:04.97,900,2\n";
  options.rate = {"100"};  // A minute would be too long.
  EXPECT_EQ(RunBench(options, console()), kExitOk);
  const auto requests = router_.requests();
  ASSERT_EQ(requests.size(), 2u);
  const bool in_order = requests[0].stopping().max_tokens() == 3;
  const v1::GenerateRequest& first = requests[in_order ? 0 : 1];
  const v1::GenerateRequest& second = requests[in_order ? 1 : 0];
  EXPECT_EQ(first.prompt().token_ids().ids_size(), 7);
  EXPECT_EQ(second.prompt().token_ids().ids_size(), 128);
  EXPECT_EQ(second.stopping().max_tokens(), 2u);
}

TEST_F(BenchTest, BenchWithoutARouterFails) {
  served_.server->Shutdown();
  BenchOptions options;
  options.router = served_.endpoint;
  EXPECT_EQ(RunBench(options, console()), kExitFailed);
  EXPECT_THAT(err_.str(), HasSubstr("baton bench: UNAVAILABLE"));
  options.clients = {"0"};
  EXPECT_FALSE(ValidateBench(options).ok());
  options.clients.clear();
  for (const char* rate : {"0", "-1", "nan", "inf", "fast"}) {
    options.rate = {rate};
    EXPECT_FALSE(ValidateBench(options).ok()) << rate;
  }
  options.rate = {"0.5"};
  EXPECT_TRUE(ValidateBench(options).ok());
  options.trace = "/nowhere/at/all";
  EXPECT_FALSE(ValidateBench(options).ok());
}

}  // namespace
}  // namespace baton
