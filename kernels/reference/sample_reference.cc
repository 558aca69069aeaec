#include "kernels/reference/sample_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace baton {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double Gumbel(const SampleParams& params, uint32_t token) {
  const std::array<uint32_t, 4> words = Philox4x32(
      {token / 4, params.sample_index, static_cast<uint32_t>(params.position),
       static_cast<uint32_t>(params.position >> 32)},
      {static_cast<uint32_t>(params.seed),
       static_cast<uint32_t>(params.seed >> 32)});
  const float rounded = static_cast<float>((words[token % 4] + 0.5) * 0x1p-32);
  const double v = std::min<double>(rounded, 1 - 0x1p-24);
  return -std::log(-std::log1p(-v));
}

double LogSumExp(const std::vector<float>& logits, double max) {
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - max);
  return std::log(sum);
}

// Tokens in falling order of z, ties by lower id.
std::vector<uint32_t> Order(const std::vector<double>& z) {
  std::vector<uint32_t> order(z.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return z[a] > z[b]; });
  return order;
}

void Truncate(const std::vector<double>& z, const SampleParams& params,
              ReferenceSampleResult* result) {
  const std::vector<uint32_t> order = Order(z);
  const double z_max = z[order[0]];
  double total = 0;
  for (double value : z) total += std::exp(value - z_max);
  const double lowest =
      params.min_p > 0 ? z_max + std::log(static_cast<double>(params.min_p))
                       : -kInfinity;
  double before = 0;
  result->edge_margin = kInfinity;
  for (uint32_t token : order) {
    if (params.top_k > 0 && result->kept.size() >= params.top_k) break;
    if (params.min_p > 0 && token != order[0]) {
      result->edge_margin =
          std::min(result->edge_margin, std::abs(z[token] - lowest));
      if (z[token] < lowest) break;
    }
    if (params.top_p < 1) {
      const double limit = params.top_p * total;
      if (token != order[0]) {
        result->edge_margin =
            std::min(result->edge_margin, std::abs(before - limit) / limit);
      }
      if (before > limit) break;
    }
    result->kept.push_back(token);
    before += std::exp(z[token] - z_max);
  }
}

void DrawToken(const std::vector<double>& z, const SampleParams& params,
               ReferenceSampleResult* result) {
  double best = -kInfinity;
  double second = -kInfinity;
  for (uint32_t token : result->kept) {
    const double value = z[token] + Gumbel(params, token);
    if (value > best) {
      second = best;
      best = value;
      result->token_id = token;
    } else {
      second = std::max(second, value);
    }
  }
  result->draw_margin = best - second;
}

}  // namespace

ReferenceSampleResult ReferenceSample(const std::vector<float>& logits,
                                      const SampleParams& params) {
  ReferenceSampleResult result;
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (params.temperature == 0) {
    result.token_id = static_cast<uint32_t>(largest - logits.begin());
    result.draw_margin = result.edge_margin = kInfinity;
  } else {
    std::vector<double> z;
    z.reserve(logits.size());
    const float inverse = 1.0f / params.temperature;
    for (float logit : logits) z.push_back(logit * inverse);
    Truncate(z, params, &result);
    DrawToken(z, params, &result);
  }
  result.logprob = (logits[result.token_id] - static_cast<double>(*largest)) -
                   LogSumExp(logits, *largest);
  return result;
}

}  // namespace baton
