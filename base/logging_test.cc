#include "base/logging.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
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

// Writes to a pipe that stderr leads to for as long as it lives.
class StderrPipe {
 public:
  StderrPipe() : stderr_(dup(STDERR_FILENO)) {
    CHECK_EQ(pipe(ends_), 0);
    CHECK_EQ(dup2(ends_[1], STDERR_FILENO), STDERR_FILENO);
  }
  ~StderrPipe() {
    dup2(stderr_, STDERR_FILENO);
    close(stderr_);
    close(ends_[0]);
    close(ends_[1]);
  }

  // What is in it.
  std::string Read() const {
    std::string text;
    char bytes[4096];
    for (pollfd in = {ends_[0], POLLIN, 0}; poll(&in, 1, 0) == 1;) {
      text.append(bytes, read(ends_[0], bytes, sizeof bytes));
    }
    return text;
  }

 private:
  const int stderr_;
  int ends_[2];
};

TEST(LoggingTest, AReaderWhoStandsStillCostsLinesNotTime) {
  constexpr int kLines = 2000;  // Of a hundred bytes: more than a pipe holds.
  const StderrPipe pipe;
  for (int i = 0; i < kLines; ++i) LOG(INFO) << std::string(100, 'x');
  const std::string before = pipe.Read();
  const auto written = std::count(before.begin(), before.end(), '\n');
  EXPECT_LT(written, kLines);
  LOG(INFO) << "next";
  EXPECT_NE(pipe.Read().find("W " + std::to_string(kLines - written) +
                             " lines of log were lost"),
            std::string::npos);
  LOG(INFO) << "and next";
  EXPECT_EQ(pipe.Read().find("lost"), std::string::npos);
}

TEST(LoggingTest, ALineLongerThanAPipeTakesAtOnceIsWritten) {
  const StderrPipe pipe;
  LOG(INFO) << std::string(20'000, 'y') << " end";
  EXPECT_NE(pipe.Read().find("y end\n"), std::string::npos);
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
