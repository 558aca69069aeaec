// Cosines and sines in double precision from + - * / alone, rounded once to
// float32: no libm, whose variants depend on the CPU.
#include <cstdint>

#include "base/logging.h"
#include "kernels/elementwise.h"

namespace baton {
namespace {

// pi / 2 in three parts; the first two have 33 bits, so that their products
// with an integer below 2^20 are exact.
constexpr double kHalfPiHigh = 0x1.921fb544p+0;
constexpr double kHalfPiMiddle = 0x1.0b4611a6p-34;
constexpr double kHalfPiLow = 0x1.3198a2e037073p-69;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

// Taylor's series, enough terms for |r| <= pi / 4 in double precision.
double SinSeries(double r) {
  const double square = r * r;
  double sum = 0;
  for (int n = 19; n > 1; n -= 2) {
    sum = (1.0 + sum) * (-square / (n * (n - 1)));
  }
  return r + r * sum;
}

double CosSeries(double r) {
  const double square = r * r;
  double sum = 0;
  for (int n = 18; n > 0; n -= 2) {
    sum = (1.0 + sum) * (-square / (n * (n - 1)));
  }
  return 1.0 + sum;
}

struct CosSin {
  double cos;
  double sin;
};

CosSin CosSinOf(double angle) {
  const int64_t quarter_turns =
      static_cast<int64_t>(angle * kTwoOverPi + (angle < 0 ? -0.5 : 0.5));
  const double n = static_cast<double>(quarter_turns);
  const double r =
      ((angle - n * kHalfPiHigh) - n * kHalfPiMiddle) - n * kHalfPiLow;
  const double c = CosSeries(r);
  const double s = SinSeries(r);
  switch (quarter_turns & 3) {
    case 0:
      return {c, s};
    case 1:
      return {-s, c};
    case 2:
      return {-c, -s};
    default:
      return {s, -c};
  }
}

}  // namespace

void FillRopeTables(std::span<const double> frequencies, double amplitude,
                    MatrixView<float> cos, MatrixView<float> sin) {
  CHECK_EQ(static_cast<size_t>(cos.cols), frequencies.size());
  CHECK_EQ(cos.cols, sin.cols);
  CHECK_EQ(cos.rows, sin.rows);
  for (int p = 0; p < cos.rows; ++p) {
    for (int i = 0; i < cos.cols; ++i) {
      const CosSin turned = CosSinOf(static_cast<double>(p) *
                                     frequencies[static_cast<size_t>(i)]);
      cos.row(p)[i] = static_cast<float>(amplitude * turned.cos);
      sin.row(p)[i] = static_cast<float>(amplitude * turned.sin);
    }
  }
}

}  // namespace baton
