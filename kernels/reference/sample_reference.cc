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

// Of each of `tokens`, which are in falling order: those above -infinity.
std::vector<ReferenceLogprob> LogSoftmax(const std::vector<double>& values,
                                         const std::vector<uint32_t>& tokens) {
  const double max = values[tokens[0]];
  double sum = 0;
  for (uint32_t token : tokens) sum += std::exp(values[token] - max);
  std::vector<ReferenceLogprob> result;
  for (uint32_t token : tokens) {
    if (values[token] == -kInfinity) continue;
    result.push_back({token, (values[token] - max) - std::log(sum)});
  }
  return result;
}

double LogprobIn(const std::vector<ReferenceLogprob>& ranking, uint32_t token) {
  for (const ReferenceLogprob& entry : ranking) {
    if (entry.token_id == token) return entry.logprob;
  }
  return -kInfinity;
}

float ModifiedLogit(float x, uint32_t token, const SampleParams& params) {
  for (const LogitBias& entry : params.logit_bias) {
    if (entry.token_id == token) x = x + entry.bias;
  }
  if (params.token_counts != nullptr) {
    const uint32_t word = params.token_counts[token];
    const uint32_t count =
        (word & ~kPromptTokenBit) +
        static_cast<uint32_t>(std::count(params.uncounted.begin(),
                                         params.uncounted.end(), token));
    if ((word & kPromptTokenBit) != 0 || count > 0) {
      x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    }
    if (count > 0) {
      const float frequency =
          static_cast<float>(count) * params.frequency_penalty;
      x = x - frequency;
      x = x - params.presence_penalty;
    }
  }
  const bool is_forbidden =
      std::count(params.forbidden.begin(), params.forbidden.end(), token) > 0;
  if (is_forbidden) return -std::numeric_limits<float>::infinity();
  constexpr float kLargest = std::numeric_limits<float>::max();
  return x <= kLargest ? x : kLargest;  // So of a NaN too.
}

}  // namespace

std::vector<float> ReferenceModifiedLogits(std::vector<float> logits,
                                           const SampleParams& params) {
  for (uint32_t token = 0; token < logits.size(); ++token) {
    logits[token] = ModifiedLogit(logits[token], token, params);
  }
  return logits;
}

ReferenceSampleResult ReferenceSample(const std::vector<float>& logits,
                                      const SampleParams& params) {
  ReferenceSampleResult result;
  const std::vector<float> modified = ReferenceModifiedLogits(logits, params);
  const auto largest = std::max_element(modified.begin(), modified.end());
  std::vector<double> z(modified.begin(), modified.end());
  if (params.temperature == 0 || !std::isfinite(*largest)) {
    result.token_id = static_cast<uint32_t>(largest - modified.begin());
    result.kept = {result.token_id};
    result.draw_margin = result.edge_margin = kInfinity;
  } else {
    const float inverse = 1.0f / params.temperature;
    for (size_t i = 0; i < z.size(); ++i) z[i] = modified[i] * inverse;
    Truncate(z, params, &result);
    DrawToken(z, params, &result);
  }
  const std::vector<double> raw(logits.begin(), logits.end());
  result.ranking = LogSoftmax(raw, Order(raw));
  result.ranking_kept = LogSoftmax(z, result.kept);
  result.logprob = LogprobIn(result.ranking, result.token_id);
  result.logprob_kept = LogprobIn(result.ranking_kept, result.token_id);
  return result;
}

}  // namespace baton
