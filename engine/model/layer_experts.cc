#include "engine/model/layer_experts.h"

#include <utility>

#include "base/logging.h"

namespace baton {

LayerExperts::LayerExperts(int num_experts)
    : owned_(num_experts), found_(num_experts) {}

void LayerExperts::Put(uint32_t expert, MlpWeights weights) {
  CHECK_LT(expert, owned_.size());
  CHECK(owned_[expert] == nullptr) << "expert " << expert << " is here";
  owned_[expert] = std::make_unique<const MlpWeights>(std::move(weights));
  found_[expert].store(owned_[expert].get(), std::memory_order_release);
}

void LayerExperts::Drop(uint32_t expert) {
  CHECK_LT(expert, owned_.size());
  CHECK(owned_[expert] != nullptr) << "expert " << expert << " is not here";
  found_[expert].store(nullptr, std::memory_order_relaxed);
  owned_[expert].reset();
}

}  // namespace baton
