#include "kernels/reference/attention_reference.h"

#include <algorithm>
#include <cmath>

namespace baton {

std::vector<double> ReferenceLatentAttention(const std::vector<float>& q_latent,
                                             const std::vector<float>& q_rope,
                                             MatrixView<const float> keys,
                                             double scale) {
  std::vector<double> scores;
  for (int t = 0; t < keys.rows; ++t) {
    const float* key = keys.row(t);
    double dot = 0;
    for (float q : q_latent) dot += static_cast<double>(q) * *key++;
    for (float q : q_rope) dot += static_cast<double>(q) * *key++;
    scores.push_back(scale * dot);
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - max);
  std::vector<double> z(q_latent.size());
  for (int t = 0; t < keys.rows; ++t) {
    for (size_t d = 0; d < z.size(); ++d) {
      z[d] += scores[static_cast<size_t>(t)] / sum * keys.row(t)[d];
    }
  }
  return z;
}

}  // namespace baton
