// Line plots as SVG, side by side. Pure.
#ifndef BATON_SERVER_CLI_PLOT_H_
#define BATON_SERVER_CLI_PLOT_H_

#include <string>
#include <vector>

namespace baton {

struct PlotPoint {
  double x = 0;
  double y = 0;
  std::string label;
};

struct Plot {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<PlotPoint> points = {};  // Joined in this order.
};

// Where each plot's area lies in the picture, in user units: plot i begins
// i * kPlotWidth from the left. Both axes are linear and begin at 0, in the
// area's lower left corner.
inline constexpr int kPlotWidth = 480;
inline constexpr int kPlotHeight = 360;
inline constexpr int kAreaLeft = 70;
inline constexpr int kAreaTop = 40;
inline constexpr int kAreaWidth = 380;
inline constexpr int kAreaHeight = 260;

// The axis that holds values up to `largest`: from 0 in `steps` ticks of `step`
// (1, 2 or 5 times a power of ten) to its end.
struct PlotAxis {
  double step = 1;
  int steps = 1;
  double end() const { return step * steps; }
};
PlotAxis AxisUpTo(double largest);

// A point that is not finite, or below 0, is left out.
std::string DrawPlots(const std::vector<Plot>& plots);

}  // namespace baton

#endif  // BATON_SERVER_CLI_PLOT_H_
