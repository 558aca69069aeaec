#include "engine/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace baton {
namespace {

using std::numbers::ln2;

// The C library's log and exp differ in the last bit between processors; these
// are sums of IEEE operations. Good to about 2^-50, for positive normal x.
double Log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // [0.5, 1), exact.
  if (m < std::numbers::sqrt2 / 2) {
    m *= 2;
    --exponent;
  }
  // ln m = 2 artanh(s), |s| < 0.172.
  const double s = (m - 1) / (m + 1);
  double sum = 0;
  for (int k = 27; k >= 1; k -= 2) sum = sum * (s * s) + 1.0 / k;
  return exponent * ln2 + 2 * s * sum;
}

double Exp(double x) {
  const double k = std::nearbyint(x / ln2);
  const double r = x - k * ln2;
  double sum = 0;
  for (int n = 20; n >= 1; --n) sum = (sum + 1) * r / n;
  return std::ldexp(sum + 1, static_cast<int>(k));
}

double MscaleFactor(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * Log(factor) + 1;
}

}  // namespace

std::vector<double> RopeFrequencies(const ModelConfig& config) {
  const double dim = config.rope_dim;
  const double log_theta = Log(config.rope_theta);
  std::vector<double> frequencies(config.rope_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = Exp(-2.0 * i / dim * log_theta);
  }
  if (!config.yarn.has_value()) return frequencies;
  const YarnScaling& yarn = *config.yarn;
  // The pair that turns n times within the original context.
  const auto pair_of_turns = [&](double n) {
    return dim * Log(yarn.original_max_position / (n * 2 * std::numbers::pi)) /
           (2 * log_theta);
  };
  const double low = std::max(std::floor(pair_of_turns(yarn.beta_fast)), 0.0);
  const double high =
      std::min(std::ceil(pair_of_turns(yarn.beta_slow)), dim - 1);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp =
        std::clamp((i - low) / std::max(high - low, 1e-3), 0.0, 1.0);
    frequencies[i] *= (1 - ramp) + ramp / yarn.factor;
  }
  return frequencies;
}

double RopeAmplitude(const ModelConfig& config) {
  if (!config.yarn.has_value()) return 1;
  const YarnScaling& yarn = *config.yarn;
  return MscaleFactor(yarn.factor, yarn.mscale) /
         MscaleFactor(yarn.factor, yarn.mscale_all_dim);
}

float SoftmaxScale(const ModelConfig& config) {
  const double scale = 1 / std::sqrt(config.nope_dim + config.rope_dim);
  if (!config.yarn.has_value()) return static_cast<float>(scale);
  const double mscale =
      MscaleFactor(config.yarn->factor, config.yarn->mscale_all_dim);
  return static_cast<float>(scale * mscale * mscale);
}

}  // namespace baton
