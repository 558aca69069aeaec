#include "server/cli/bench_report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

std::vector<absl::Duration> Seconds(int first, int last) {
  std::vector<absl::Duration> values;
  for (int i = first; i <= last; ++i) values.push_back(absl::Seconds(i));
  return values;
}

TEST(BenchReportTest, PercentilesAreNearestRanks) {
  EXPECT_EQ(Percentile({}, 50), absl::ZeroDuration());
  EXPECT_EQ(Percentile(Seconds(7, 7), 1), absl::Seconds(7));
  EXPECT_EQ(Percentile(Seconds(7, 7), 99), absl::Seconds(7));
  EXPECT_EQ(Percentile(Seconds(1, 100), 50), absl::Seconds(50));
  EXPECT_EQ(Percentile(Seconds(1, 100), 99), absl::Seconds(99));
  EXPECT_EQ(Percentile(Seconds(1, 10), 99), absl::Seconds(10));
  EXPECT_EQ(Percentile(Seconds(1, 10), 0), absl::Seconds(1));
}

BenchLevel TwoRequests() {
  return {.clients = 2,
          .failed_requests = 1,
          .wall_time = absl::Seconds(2),
          .client_cpu_time = absl::Microseconds(100),
          .servers = {{.pid = 17,
                       .name = "batond",
                       .cpu_time = absl::Microseconds(200),
                       .resident_bytes = 4096},
                      {.pid = 18,
                       .name = "baton-router",
                       .cpu_time = absl::Microseconds(100)}},
          .requests = {{.prompt_tokens = 30,
                        .num_tokens = 3,
                        .ttft = absl::Seconds(1),
                        .tpot = absl::Seconds(2),
                        .e2e = absl::Seconds(5),
                        .itl = {absl::Seconds(1), absl::Seconds(3)}},
                       {.prompt_tokens = 10,
                        .num_tokens = 1,
                        .ttft = absl::Seconds(3),
                        .e2e = absl::Seconds(3)}}};
}

TEST(BenchReportTest, RatesCountAllTokensAndCpuTimeOfAllProcesses) {
  const nlohmann::json json = LevelJson(TwoRequests());
  EXPECT_EQ(json["output_tokens"], 4);
  EXPECT_EQ(json["requests"], 2);
  EXPECT_EQ(json["failed_requests"], 1);
  EXPECT_DOUBLE_EQ(json["tokens_per_second"], 2);
  EXPECT_DOUBLE_EQ(json["input_tokens_per_second"], 20);
  EXPECT_DOUBLE_EQ(json["cpu_us_per_token"], 100);
  EXPECT_EQ(json["servers"][0]["resident_bytes"], 4096);
  EXPECT_EQ(json["servers"][1]["name"], "baton-router");
  EXPECT_EQ(json["servers"][1]["pid"], 18);
}

TEST(BenchReportTest, ARequestOfOneTokenHasNoTpot) {
  const nlohmann::json json = LevelJson(TwoRequests());
  EXPECT_DOUBLE_EQ(json["tpot_seconds"]["p50"], 2);
  EXPECT_DOUBLE_EQ(json["ttft_seconds"]["p50"], 1);
  EXPECT_DOUBLE_EQ(json["ttft_seconds"]["p99"], 3);
  EXPECT_DOUBLE_EQ(json["itl_seconds"]["p90"], 3);
}

TEST(BenchReportTest, TheTableHasTwoLinesForEachLevel) {
  const std::string table = ReportTable({TwoRequests(), TwoRequests()});
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5);
  EXPECT_THAT(table, HasSubstr("ttft p99"));
  EXPECT_THAT(table, HasSubstr("3000.00"));
  EXPECT_THAT(table, HasSubstr("client 25.0, batond[17] 50.0 (0 MB), "
                               "baton-router[18] 25.0"));
}

TEST(BenchReportTest, GoodputIsOfThoseThatKeptBothLimits) {
  BenchLevel level = TwoRequests();
  level.limits = {.ttft = absl::Seconds(2), .tpot = absl::Seconds(2)};
  EXPECT_EQ(LevelJson(level)["good_requests"], 1);
  EXPECT_DOUBLE_EQ(LevelJson(level)["goodput_per_second"], 0.5);
  // One of three: the one that failed was sent too.
  EXPECT_THAT(ReportTable({level}),
              HasSubstr("goodput 0.5/s: 33.3 % within TTFT 2000 ms and TPOT "
                        "2000 ms\n"));
  level.limits = {.tpot = absl::Seconds(1)};
  EXPECT_EQ(LevelJson(level)["good_requests"], 1);
  EXPECT_THAT(ReportTable({level}), HasSubstr("within TPOT 1000 ms"));
  level.limits = {};
  EXPECT_EQ(LevelJson(level)["good_requests"], 2);
}

TEST(BenchReportTest, AnOpenLoopIsNamedByItsRate) {
  const BenchLevel level = {.rate = 2.5};
  EXPECT_EQ(LoadName(level), "2.5/s");
  EXPECT_DOUBLE_EQ(LevelJson(level)["rate"], 2.5);
  EXPECT_FALSE(LevelJson(level).contains("clients"));
  EXPECT_EQ(LoadName(TwoRequests()), "2 clients");
  EXPECT_EQ(LoadName({.clients = 1}), "1 client");
  EXPECT_FALSE(LevelJson(TwoRequests()).contains("rate"));
}

TEST(BenchReportTest, TheSweepHasEachLevelInBothPlots) {
  // The second has no medians.
  const std::vector<Plot> plots =
      SweepPlots({TwoRequests(), {.clients = 1, .failed_requests = 4}});
  ASSERT_EQ(plots.size(), 2u);
  ASSERT_EQ(plots[0].points.size(), 1u);
  EXPECT_DOUBLE_EQ(plots[0].points[0].x, 0.5);
  EXPECT_DOUBLE_EQ(plots[0].points[0].y, 2);
  ASSERT_EQ(plots[1].points.size(), 1u);
  EXPECT_DOUBLE_EQ(plots[1].points[0].x, 1000);
  EXPECT_DOUBLE_EQ(plots[1].points[0].y, 20);
  EXPECT_EQ(plots[1].points[0].label, "2 clients");
}

TEST(BenchReportTest, ALevelWithoutAnyTokenHasRatesOfZero) {
  const nlohmann::json json = LevelJson({.clients = 1, .failed_requests = 4});
  EXPECT_DOUBLE_EQ(json["tokens_per_second"], 0);
  EXPECT_DOUBLE_EQ(json["cpu_us_per_token"], 0);
  EXPECT_FALSE(json.contains("servers"));
}

}  // namespace
}  // namespace baton
