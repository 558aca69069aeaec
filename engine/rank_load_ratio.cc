#include "engine/rank_load_ratio.h"

#include <algorithm>
#include <numeric>

#include "base/logging.h"

namespace baton {

RankLoadRatio::RankLoadRatio(uint32_t num_layers, uint32_t num_local_ranks)
    : num_layers_(num_layers), ranks_done_(num_local_ranks) {
  CHECK(num_layers > 0 && num_local_ranks > 0);
}

std::optional<double> RankLoadRatio::Add(uint32_t local_rank,
                                         std::span<const uint32_t> rows) {
  CHECK_EQ(rows.size() % num_layers_, 0u);
  const uint64_t index = ranks_done_.at(local_rank)++ - num_done_;
  if (index == steps_.size()) {
    steps_.push_back({.fullest = std::vector<uint64_t>(num_layers_)});
  }
  Step& step = steps_[index];
  const size_t num_slots = rows.size() / num_layers_;
  for (uint32_t layer = 0; layer < num_layers_; ++layer) {
    const std::span<const uint32_t> slots =
        rows.subspan(layer * num_slots, num_slots);
    const uint64_t load =
        std::accumulate(slots.begin(), slots.end(), uint64_t{0});
    step.fullest[layer] = std::max(step.fullest[layer], load);
    step.sum += load;
  }
  if (++step.num_ranks < ranks_done_.size()) return std::nullopt;
  // Ranks take the steps in order, so it is the oldest.
  const Step whole = std::move(steps_.front());
  steps_.pop_front();
  ++num_done_;
  if (whole.sum == 0) return std::nullopt;
  const uint64_t fullest =
      std::accumulate(whole.fullest.begin(), whole.fullest.end(), uint64_t{0});
  return static_cast<double>(fullest * ranks_done_.size()) /
         static_cast<double>(whole.sum);
}

}  // namespace baton
