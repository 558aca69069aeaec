#include "server/cli/timed_requests.h"

#include <cmath>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string WriteFile(const std::string& text) {
  std::string path = ::testing::TempDir() + "trace";
  std::ofstream(path) << text;
  return path;
}

TEST(TimedRequestsTest, PoissonGapsHaveTheMeanAndTheSpreadOfTheRate) {
  constexpr uint32_t kCount = 20000;
  const auto requests = PoissonRequests(4, kCount, 1, {10, 20});
  ASSERT_EQ(requests.size(), kCount);
  double sum = 0;
  double squares = 0;
  absl::Duration previous;
  for (const TimedRequest& request : requests) {
    const double gap = absl::ToDoubleSeconds(request.send - previous);
    EXPECT_GE(gap, 0);
    sum += gap;
    squares += gap * gap;
    previous = request.send;
  }
  const double mean = sum / kCount;
  EXPECT_NEAR(mean, 0.25, 0.01);
  // An exponential's standard deviation is its mean.
  EXPECT_NEAR(std::sqrt(squares / kCount - mean * mean), 0.25, 0.01);
  EXPECT_EQ(requests[0].shape.prompt_tokens, 10u);
  EXPECT_EQ(requests[0].shape.max_tokens, 20u);
}

TEST(TimedRequestsTest, ASeedAlwaysGivesTheSameTimes) {
  const auto first = PoissonRequests(1, 5, 7, {});
  const auto again = PoissonRequests(1, 5, 7, {});
  const auto other = PoissonRequests(1, 5, 8, {});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(first[i].send, again[i].send);
  EXPECT_NE(first[0].send, other[0].send);
}

TEST(TimedRequestsTest, ReadsTheCsvOfAzure) {
  const auto trace =
      ReadTrace(WriteFile("TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                          "2023-11-16 18:17:03.9799600,4808,10\r\n"
                          "2023-11-16 18:17:05.4799600,0,800\n"),
                0, {.bound = {1000, 500}});
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].send, absl::ZeroDuration());
  EXPECT_EQ((*trace)[0].shape.prompt_tokens, 1000u);
  EXPECT_EQ((*trace)[0].shape.max_tokens, 10u);
  EXPECT_EQ((*trace)[1].send, absl::Milliseconds(1500));
  EXPECT_EQ((*trace)[1].shape.prompt_tokens, 1u);
  EXPECT_EQ((*trace)[1].shape.max_tokens, 500u);
}

TEST(TimedRequestsTest, ReadsTheLinesOfMooncake) {
  const std::string path = WriteFile(
      R"({"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0]})"
      "\n"
      R"({"timestamp": 4000, "input_length": 7, "output_length": 3})"
      "\n");
  const auto trace = ReadTrace(path, 0, {.bound = {8000, 8000}});
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].shape.prompt_tokens, 6758u);
  EXPECT_EQ((*trace)[1].send, absl::Seconds(1));
  EXPECT_EQ(ReadTrace(path, 1, {.bound = {8000, 8000}})->size(), 1u);
}

TEST(TimedRequestsTest, BlocksOfAPromptShrinkWithItsLength) {
  const std::string path = WriteFile(
      R"({"timestamp": 0, "input_length": 1000, "output_length": 80, "hash_ids": [7, 9]})"
      "\n"
      R"({"timestamp": 0, "input_length": 1000, "output_length": 80, "hash_ids": [7]})"
      "\n"
      R"({"timestamp": 0, "input_length": 3, "output_length": 3})"
      "\n");
  const auto trace = ReadTrace(path, 0, {.divisor = 8, .bound = {8000, 8000}});
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ((*trace)[0].shape.prompt_tokens, 125u);
  EXPECT_EQ((*trace)[0].shape.max_tokens, 10u);
  EXPECT_EQ((*trace)[0].block_tokens, 64u);
  EXPECT_THAT((*trace)[0].blocks, ElementsAre(7, 9));
  // Too few for the length: nothing is known of them.
  EXPECT_THAT((*trace)[1].blocks, IsEmpty());
  EXPECT_EQ((*trace)[2].shape.prompt_tokens, 1u);
}

TEST(TimedRequestsTest, WhatIsNoTraceIsRefusedWithItsLine) {
  const TraceLengths bound = {.bound = {10, 10}};
  const auto bad = ReadTrace(
      WriteFile("2023-11-16 18:17:03.5,1,1\n2023-11-16,1\n"), 0, bound);
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("trace:2"));
  for (const char* text :
       {"", "{\"timestamp\": -1}\n", "{]\n",
        "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02,1,1\n"}) {
    EXPECT_FALSE(ReadTrace(WriteFile(text), 0, bound).ok()) << text;
  }
  EXPECT_FALSE(ReadTrace("/nowhere/at/all", 0, bound).ok());
}

TEST(TimedRequestsTest, ScalingSetsTheMeanRateAndKeepsThePattern) {
  std::vector<TimedRequest> requests = {{absl::ZeroDuration(), {}},
                                        {absl::Seconds(1), {}},
                                        {absl::Seconds(4), {}}};
  EXPECT_DOUBLE_EQ(MeanRate(requests), 0.5);
  ScaleToRate(2, &requests);
  EXPECT_DOUBLE_EQ(MeanRate(requests), 2);
  EXPECT_EQ(requests[1].send, absl::Milliseconds(250));
  std::vector<TimedRequest> alone = {{absl::Seconds(3), {}}};
  ScaleToRate(2, &alone);
  EXPECT_EQ(alone[0].send, absl::Seconds(3));
}

}  // namespace
}  // namespace baton
