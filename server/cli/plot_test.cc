#include "server/cli/plot.h"

#include <cctype>
#include <cmath>
#include <limits>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Every element is closed in its order, and text has no bare < or &.
bool IsWellFormed(const std::string& xml) {
  static const std::regex kTag(
      R"rx(<(/?)([a-z]+)((?: [a-zA-Z0-9-]+="[^"<&]*")*)(/?)>)rx");
  static const std::regex kText("(?:[^<>&]|&(?:amp|lt|gt|quot);)*");
  std::vector<std::string> open;
  size_t end = 0;
  for (std::sregex_iterator tag(xml.begin(), xml.end(), kTag), none;
       tag != none; ++tag) {
    const auto start = static_cast<size_t>(tag->position());
    if (!std::regex_match(xml.substr(end, start - end), kText)) return false;
    end = start + static_cast<size_t>(tag->length());
    const std::string name = (*tag)[2];
    if ((*tag)[1].length() > 0) {
      if (open.empty() || open.back() != name) return false;
      open.pop_back();
    } else if ((*tag)[4].length() == 0) {
      open.push_back(name);
    }
  }
  return open.empty() && xml.substr(end) == "\n";
}

std::vector<std::pair<double, double>> Circles(const std::string& svg) {
  static const std::regex kCircle(R"rx(<circle cx="([^"]*)" cy="([^"]*)")rx");
  std::vector<std::pair<double, double>> circles;
  for (std::sregex_iterator circle(svg.begin(), svg.end(), kCircle), none;
       circle != none; ++circle) {
    circles.emplace_back(std::stod((*circle)[1]), std::stod((*circle)[2]));
  }
  return circles;
}

TEST(PlotTest, AxesEndAtARoundNumberThatHoldsTheLargest) {
  for (const double largest : {0.0031, 0.7, 1.0, 1.01, 6.0, 99.0, 12345.0}) {
    const PlotAxis axis = AxisUpTo(largest);
    EXPECT_GE(axis.end(), largest);
    EXPECT_LE(axis.end() - axis.step, largest);
    EXPECT_LE(axis.steps, 6);
    const double digits =
        axis.step / std::pow(10, std::floor(std::log10(axis.step) + 1e-9));
    EXPECT_TRUE(std::abs(digits - 1) < 1e-6 || std::abs(digits - 2) < 1e-6 ||
                std::abs(digits - 5) < 1e-6)
        << axis.step;
  }
  EXPECT_EQ(AxisUpTo(0).end(), 1);
}

TEST(PlotTest, PointsLieWhereTheAxesSay) {
  // Axes up to 10 and 200.
  const std::string svg =
      DrawPlots({{.title = "one", .points = {{0, 0, "a"}, {10, 200, "b"}}},
                 {.title = "two", .points = {{5, 50, "c"}, {10, 200, "d"}}}});
  constexpr double kBottom = kAreaTop + kAreaHeight;
  EXPECT_THAT(Circles(svg),
              ElementsAre(Pair(kAreaLeft, kBottom),
                          Pair(kAreaLeft + kAreaWidth, kAreaTop),
                          Pair(kPlotWidth + kAreaLeft + kAreaWidth / 2.0,
                               kBottom - kAreaHeight / 4.0),
                          Pair(kPlotWidth + kAreaLeft + kAreaWidth, kAreaTop)));
  EXPECT_THAT(svg, HasSubstr("<title>b: 10, 200</title>"));
}

TEST(PlotTest, TheTextIsWellFormedWhateverTheLabels) {
  const std::string svg = DrawPlots({{.title = "a < b & \"c\" > d",
                                      .x_label = "<x>",
                                      .y_label = "&amp;",
                                      .points = {{1, 2, "</svg>"}}}});
  EXPECT_TRUE(IsWellFormed(svg)) << svg;
  EXPECT_TRUE(IsWellFormed(DrawPlots({})));
  EXPECT_TRUE(IsWellFormed(DrawPlots({{.title = "no point"}})));
  EXPECT_FALSE(IsWellFormed("<a><b></a></b>\n"));
  EXPECT_FALSE(IsWellFormed("<a>&</a>\n"));
  EXPECT_FALSE(IsWellFormed("<a>\n"));
}

TEST(PlotTest, WhatHasNoPlaceIsLeftOut) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  const std::string svg = DrawPlots(
      {{.points = {{nan, 1, ""}, {1, infinite, ""}, {-1, 1, ""}, {1, 1, ""}}}});
  EXPECT_EQ(Circles(svg).size(), 1u);
  EXPECT_TRUE(IsWellFormed(svg)) << svg;
}

}  // namespace
}  // namespace baton
