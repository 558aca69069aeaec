#include "base/logging.h"

#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(LoggingTest, ALineHasSeverityFileAndText) {
  testing::internal::CaptureStderr();
  LOG(WARNING) << "blocks " << 3;
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_EQ(line.substr(0, 2), "W ");
  EXPECT_NE(line.find(" logging_test.cc:"), std::string::npos) << line;
  EXPECT_NE(line.find("] blocks 3\n"), std::string::npos) << line;
}

TEST(LoggingTest, VlogWritesUpToTheLevelOnly) {
  testing::internal::CaptureStderr();
  VLOG(1) << "hidden";
  SetVlogLevel(1);
  VLOG(1) << "shown";
  VLOG(2) << "hidden";
  SetVlogLevel(0);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("shown"), std::string::npos);
  EXPECT_EQ(text.find("hidden"), std::string::npos);
}

TEST(LoggingDeathTest, CheckNamesConditionAndValues) {
  const int used = 5;
  EXPECT_DEATH(CHECK_LE(used, 4) << "pool main",
               "used <= 4 \\(5 vs 4\\) pool main");
}

struct BadStatus {
  bool ok() const { return false; }
  std::string ToString() const { return "bad"; }
};

TEST(LoggingDeathTest, CheckOkAsksOnce) {
  int asked = 0;
  const auto ask = [&] {
    ++asked;
    return BadStatus();
  };
  EXPECT_DEATH(CHECK_OK(ask()) << asked << " time", "ask\\(\\) is bad 1 time");
}

}  // namespace
}  // namespace baton
