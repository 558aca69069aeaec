#include "kernels/reference/route_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace baton {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> Scores(const RoutingOptions& options,
                           const std::vector<float>& logits) {
  std::vector<double> scores(logits.begin(), logits.end());
  if (options.scoring == ScoringFunction::kSigmoid) {
    for (double& x : scores) x = 1 / (1 + std::exp(-x));
    return scores;
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& x : scores) sum += x = std::exp(x - max);
  for (double& x : scores) x /= sum;
  return scores;
}

// The first k of the falling order, ties to the lower index; lowers *margin to
// the smallest gap between neighbours up to the first that is left out.
std::vector<int> TopK(const std::vector<double>& values, int k,
                      double* margin) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](int i) { return values[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return at(a) > at(b); });
  for (size_t i = 0; i < static_cast<size_t>(k) && i + 1 < order.size(); ++i) {
    const double gap = at(order[i]) - at(order[i + 1]);
    if (gap > 0) *margin = std::min(*margin, gap);
  }
  order.resize(static_cast<size_t>(k));
  return order;
}

void KeepBestGroups(const RoutingOptions& options,
                    std::vector<double>* selection, double* margin) {
  const size_t size =
      selection->size() / static_cast<size_t>(options.num_groups);
  std::vector<double> groups;
  for (size_t g = 0; g < static_cast<size_t>(options.num_groups); ++g) {
    const auto begin = selection->begin() + static_cast<ptrdiff_t>(g * size);
    std::vector<double> members(begin, begin + static_cast<ptrdiff_t>(size));
    std::sort(members.rbegin(), members.rend());
    const bool two = options.method == RoutingMethod::kNoAuxTc && size > 1;
    groups.push_back(two ? members[0] + members[1] : members[0]);
  }
  const std::vector<int> kept = TopK(groups, options.num_kept_groups, margin);
  for (size_t i = 0; i < selection->size(); ++i) {
    const int group = static_cast<int>(i / size);
    if (std::find(kept.begin(), kept.end(), group) == kept.end()) {
      (*selection)[i] = -kInfinity;
    }
  }
}

}  // namespace

ReferenceRoute ReferenceRouteExperts(const RoutingOptions& options,
                                     const std::vector<float>& logits) {
  const std::vector<double> scores = Scores(options, logits);
  std::vector<double> selection = scores;
  ReferenceRoute route;
  route.margin = kInfinity;
  if (options.method == RoutingMethod::kNoAuxTc) {
    for (size_t i = 0; i < scores.size(); ++i) selection[i] += options.bias[i];
  }
  if (options.method != RoutingMethod::kGreedy) {
    KeepBestGroups(options, &selection, &route.margin);
  }
  route.experts = TopK(selection, options.top_k, &route.margin);
  double sum = 1e-20;
  for (int e : route.experts) sum += scores[static_cast<size_t>(e)];
  for (int e : route.experts) {
    const double score = scores[static_cast<size_t>(e)];
    route.weights.push_back((options.normalize ? score / sum : score) *
                            options.scaling_factor);
  }
  return route;
}

}  // namespace baton
