#include "bench/expert_traces.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

Shares Normalised(Shares shares) {
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

Shares Shuffled(Shares shares, uint64_t seed) {
  std::mt19937_64 random(seed);
  // By hand: std::shuffle differs from library to library.
  for (size_t i = shares.size(); i > 1; --i) {
    std::swap(shares[i - 1], shares[random() % i]);
  }
  return Normalised(std::move(shares));
}

Shares Mix(const std::vector<Shares>& parts,
           const std::vector<double>& weights) {
  Shares mix(parts[0].size());
  for (size_t p = 0; p < parts.size(); ++p) {
    for (size_t e = 0; e < mix.size(); ++e) mix[e] += weights[p] * parts[p][e];
  }
  return Normalised(std::move(mix));
}

}  // namespace

Shares ZipfShares(uint32_t num_experts, double exponent, uint64_t seed) {
  Shares shares(num_experts);
  for (uint32_t e = 0; e < num_experts; ++e) {
    shares[e] = std::pow(e + 1.0, -exponent);
  }
  return Shuffled(std::move(shares), seed);
}

Shares LognormalShares(uint32_t num_experts, double sigma, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, sigma);
  Shares shares(num_experts);
  for (double& share : shares) share = std::exp(normal(random));
  return Normalised(std::move(shares));
}

Shares EvenMix(const std::vector<Shares>& parts) {
  return Mix(parts, std::vector<double>(parts.size(), 1));
}

ShareSource Stationary(Shares shares) {
  return [shares = std::move(shares)](uint32_t, std::mt19937_64&) {
    return shares;
  };
}

ShareSource Drifting(std::vector<Shares> stops, uint32_t steps_per_leg) {
  return [stops = std::move(stops), steps_per_leg](uint32_t step,
                                                   std::mt19937_64&) {
    const size_t leg = step / steps_per_leg;
    const double way = 1.0 * (step % steps_per_leg) / steps_per_leg;
    return Mix({stops[leg % stops.size()], stops[(leg + 1) % stops.size()]},
               {1 - way, way});
  };
}

ShareSource Mixed(std::vector<Shares> parts) {
  return [parts = std::move(parts)](uint32_t, std::mt19937_64& random) {
    std::exponential_distribution<double> exponential;
    std::vector<double> weights(parts.size());
    for (double& weight : weights) weight = exponential(random);
    return Mix(parts, weights);
  };
}

absl::StatusOr<std::vector<std::vector<Shares>>> ReadGoldenShares(
    const std::string& path) {
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (json.is_discarded() || !json.contains("counts")) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no expert counts"));
  }
  std::vector<std::vector<Shares>> kinds;
  for (const auto& [name, kind] : json["counts"].items()) {
    if (name == "all") continue;
    std::vector<Shares>& layers = kinds.emplace_back();
    for (const auto& [layer, counts] : kind["layers"].items()) {
      layers.push_back(Normalised(counts.get<Shares>()));
    }
  }
  return kinds;
}

std::vector<uint32_t> DrawSteps(const ShareSource& source, uint32_t num_steps,
                                uint32_t draws_per_step, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> counts;
  for (uint32_t step = 0; step < num_steps; ++step) {
    const Shares shares = source(step, random);
    uint32_t left = draws_per_step;
    double share_left = 1;
    for (const double share : shares) {
      const double p = std::clamp(share / share_left, 0.0, 1.0);
      const uint32_t drawn =
          std::binomial_distribution<uint32_t>(left, p)(random);
      counts.push_back(drawn);
      left -= drawn;
      share_left = std::max(share_left - share, 1e-12);
    }
    counts.back() += left;
  }
  return counts;
}

}  // namespace baton
