#include "engine/expert_load_collector.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"

namespace baton {

ExpertLoadCollector::ExpertLoadCollector(const ExpertLayout& layout,
                                         uint32_t num_processes)
    : layout_(layout), num_processes_(num_processes) {
  CHECK(layout.num_layers > 0 && num_processes > 0);
  Start(0);
}

void ExpertLoadCollector::Start(uint64_t round) {
  round_ = round;
  num_missing_ = layout_.num_layers * num_processes_;
  is_here_.assign(num_missing_, false);
  closed_plans_.assign(num_processes_, 0);
  loads_.assign(layout_.num_layers, {});
}

bool ExpertLoadCollector::Add(uint32_t process,
                              const RebalanceMessage& message) {
  const bool is_due = message.round == round_ || message.round == round_ + 1;
  if (process >= num_processes_ || !is_due || complete() ||
      message.layer >= layout_.num_layers ||
      message.values.size() % layout_.num_experts != 0 ||
      message.values.empty()) {
    return false;
  }
  if (message.round > round_) Start(message.round);
  const size_t place = size_t{message.layer} * num_processes_ + process;
  std::vector<uint32_t>& sum = loads_[message.layer];
  if (is_here_[place] ||
      (!sum.empty() && sum.size() != message.values.size())) {
    return false;
  }
  sum.resize(message.values.size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += message.values[i];
  is_here_[place] = true;
  closed_plans_[process] = std::max(closed_plans_[process], message.plan);
  --num_missing_;
  return true;
}

uint64_t ExpertLoadCollector::closed_plan() const {
  return *std::min_element(closed_plans_.begin(), closed_plans_.end());
}

std::vector<std::vector<uint32_t>> ExpertLoadCollector::Take() {
  CHECK(complete());
  std::vector<std::vector<uint32_t>> taken = std::move(loads_);
  Start(round_ + 1);
  return taken;
}

}  // namespace baton
