#include "server/cli/plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace baton {
namespace {

constexpr int kMaxTicks = 6;

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Text(double x, double y, const char* attributes,
                 const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y,
                         attributes, Escape(text));
}

std::string Line(double x1, double y1, double x2, double y2,
                 const char* color) {
  return absl::StrFormat(
      "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
      x1, y1, x2, y2, color);
}

bool CanBeDrawn(const PlotPoint& point) {
  return std::isfinite(point.x) && std::isfinite(point.y) && point.x >= 0 &&
         point.y >= 0;
}

// One plot's axes and its place in the picture.
struct Area {
  double left;
  PlotAxis x;
  PlotAxis y;

  double X(double value) const { return left + value / x.end() * kAreaWidth; }
  double Y(double value) const {
    return kAreaTop + kAreaHeight - value / y.end() * kAreaHeight;
  }
};

std::string DrawAxes(const Area& area) {
  constexpr double kBottom = kAreaTop + kAreaHeight;
  const double right = area.left + kAreaWidth;
  std::string svg;
  for (int i = 0; i <= area.x.steps; ++i) {
    const double value = i * area.x.step;
    svg += Line(area.X(value), kAreaTop, area.X(value), kBottom, "#ddd");
    svg += Text(area.X(value), kBottom + 16, "text-anchor=\"middle\"",
                absl::StrFormat("%g", value));
  }
  for (int i = 0; i <= area.y.steps; ++i) {
    const double value = i * area.y.step;
    svg += Line(area.left, area.Y(value), right, area.Y(value), "#ddd");
    svg += Text(area.left - 6, area.Y(value) + 4, "text-anchor=\"end\"",
                absl::StrFormat("%g", value));
  }
  svg += Line(area.left, kAreaTop, area.left, kBottom, "#000");
  svg += Line(area.left, kBottom, right, kBottom, "#000");
  return svg;
}

std::string DrawPoints(const Area& area, const std::vector<PlotPoint>& points) {
  std::string svg = "<polyline fill=\"none\" stroke=\"#06c\" points=\"";
  for (const PlotPoint& point : points) {
    svg += absl::StrFormat("%.1f,%.1f ", area.X(point.x), area.Y(point.y));
  }
  svg += "\"/>\n";
  for (const PlotPoint& point : points) {
    svg += absl::StrFormat(
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"#06c\">"
        "<title>%s: %g, %g</title></circle>\n",
        area.X(point.x), area.Y(point.y), Escape(point.label), point.x,
        point.y);
    // To the left where there is no room to the right.
    const bool left = point.x > 0.8 * area.x.end();
    svg += Text(area.X(point.x) + (left ? -5 : 5), area.Y(point.y) - 5,
                left ? "fill=\"#06c\" text-anchor=\"end\"" : "fill=\"#06c\"",
                point.label);
  }
  return svg;
}

std::string DrawPlot(const Plot& plot, double offset) {
  std::vector<PlotPoint> points;
  std::copy_if(plot.points.begin(), plot.points.end(),
               std::back_inserter(points), CanBeDrawn);
  double largest_x = 0;
  double largest_y = 0;
  for (const PlotPoint& point : points) {
    largest_x = std::max(largest_x, point.x);
    largest_y = std::max(largest_y, point.y);
  }
  const Area area = {.left = offset + kAreaLeft,
                     .x = AxisUpTo(largest_x),
                     .y = AxisUpTo(largest_y)};
  const double middle = area.left + kAreaWidth / 2.0;
  return Text(middle, 18, "text-anchor=\"middle\" font-weight=\"bold\"",
              plot.title) +
         Text(middle, kAreaTop + kAreaHeight + 36, "text-anchor=\"middle\"",
              plot.x_label) +
         Text(area.left, kAreaTop - 8, "text-anchor=\"middle\"", plot.y_label) +
         DrawAxes(area) + DrawPoints(area, points);
}

}  // namespace

PlotAxis AxisUpTo(double largest) {
  if (!(largest > 0) || !std::isfinite(largest)) return {};
  double power = std::pow(10, std::floor(std::log10(largest)) - 1);
  while (true) {
    for (const int digit : {1, 2, 5}) {
      const double step = digit * power;
      const double steps = std::ceil(largest / step);
      if (steps <= kMaxTicks) {
        return {.step = step, .steps = std::max(1, static_cast<int>(steps))};
      }
    }
    power *= 10;
  }
}

std::string DrawPlots(const std::vector<Plot>& plots) {
  const int width = kPlotWidth * static_cast<int>(plots.size());
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
      "viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
      width, kPlotHeight, width, kPlotHeight);
  for (size_t i = 0; i < plots.size(); ++i) {
    svg += DrawPlot(plots[i], static_cast<double>(i) * kPlotWidth);
  }
  return svg + "</svg>\n";
}

}  // namespace baton
