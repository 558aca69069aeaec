// Loads of experts, drawn step by step, for the benchmark of their placement.
#ifndef BATON_BENCH_EXPERT_TRACES_H_
#define BATON_BENCH_EXPERT_TRACES_H_

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

using Shares = std::vector<double>;  // Of each expert; sum 1.

// The shares of a layer's experts at a step. `random` is the layer's own.
using ShareSource =
    std::function<Shares(uint32_t step, std::mt19937_64& random)>;

// Falling as rank^-exponent, or lognormal, over the experts in random order.
Shares ZipfShares(uint32_t num_experts, double exponent, uint64_t seed);
Shares LognormalShares(uint32_t num_experts, double sigma, uint64_t seed);

Shares EvenMix(const std::vector<Shares>& parts);

// The same at every step.
ShareSource Stationary(Shares shares);
// From one of `stops` to the next in `steps_per_leg` steps each, then round.
ShareSource Drifting(std::vector<Shares> stops, uint32_t steps_per_leg);
// A new mix of `parts` at each step: each weighs as an exponential draw.
ShareSource Mixed(std::vector<Shares> parts);

// The shares of each kind of text, by layer: [kinds][layers], from the demo
// model's expert_loads.json; the mixture of all is left out.
absl::StatusOr<std::vector<std::vector<Shares>>> ReadGoldenShares(
    const std::string& path);

// [num_steps, experts]: multinomial draws of `draws_per_step` each.
std::vector<uint32_t> DrawSteps(const ShareSource& source, uint32_t num_steps,
                                uint32_t draws_per_step, uint64_t seed);

}  // namespace baton

#endif  // BATON_BENCH_EXPERT_TRACES_H_
