#include "engine/model/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace baton {
namespace {

ModelConfig V3() {
  ModelConfig config;
  config.nope_dim = 128;
  config.rope_dim = 64;
  config.rope_theta = 10000;
  config.yarn = YarnScaling{.factor = 40,
                            .original_max_position = 4096,
                            .beta_fast = 32,
                            .beta_slow = 1,
                            .mscale = 1,
                            .mscale_all_dim = 1};
  return config;
}

TEST(RopeTest, PlainFrequenciesArePowersOfTheta) {
  for (const double theta : {2.0, 10000.0, 160000.0, 1e12}) {
    ModelConfig config = V3();
    config.yarn.reset();
    config.rope_theta = theta;
    const std::vector<double> frequencies = RopeFrequencies(config);
    ASSERT_EQ(frequencies.size(), 32);
    for (int i = 0; i < 32; ++i) {
      const double expected = std::pow(theta, -i / 32.0);
      EXPECT_NEAR(frequencies[i], expected, 1e-13 * expected);
    }
  }
}

TEST(RopeTest, YarnKeepsFastPairsAndStretchesSlowOnes) {
  const std::vector<double> frequencies = RopeFrequencies(V3());
  for (int i = 0; i < 32; ++i) {
    const double plain = std::pow(10000.0, -i / 32.0);
    const double ramp = std::clamp((i - 10) / 13.0, 0.0, 1.0);  // 10 to 23.
    const double expected = plain * (1 - ramp) + plain / 40 * ramp;
    EXPECT_NEAR(frequencies[i], expected, 1e-13 * expected) << i;
  }
}

TEST(RopeTest, BoundsOfTheRampAreCutToTheDimensions) {
  ModelConfig config = V3();
  config.yarn->original_max_position = 4;  // All pairs turn less than once.
  const std::vector<double> frequencies = RopeFrequencies(config);
  EXPECT_NEAR(frequencies[31], std::pow(10000.0, -31 / 32.0) / 40, 1e-12);
}

TEST(RopeTest, ScalesOfTheReleasedModels) {
  ModelConfig config = V3();
  EXPECT_NEAR(SoftmaxScale(config), 0.135234, 1e-6);
  EXPECT_EQ(RopeAmplitude(config), 1);
  config.yarn->mscale = config.yarn->mscale_all_dim = 0.707;  // V2-Lite.
  EXPECT_NEAR(SoftmaxScale(config) * std::sqrt(192.0), 1.58963, 1e-5);
  EXPECT_EQ(RopeAmplitude(config), 1);
}

TEST(RopeTest, AmplitudeIsTheQuotientOfBothFactors) {
  ModelConfig config = V3();
  config.yarn->mscale_all_dim = 0;
  EXPECT_NEAR(RopeAmplitude(config), 0.1 * std::log(40) + 1, 1e-14);
  EXPECT_FLOAT_EQ(SoftmaxScale(config), 1 / std::sqrt(192.0));
  config.yarn->factor = 1;
  EXPECT_EQ(RopeAmplitude(config), 1);
  config.yarn.reset();
  EXPECT_EQ(RopeAmplitude(config), 1);
}

}  // namespace
}  // namespace baton
