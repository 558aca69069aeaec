// The routed experts of a layer that a process holds.
#ifndef BATON_ENGINE_MODEL_LAYER_EXPERTS_H_
#define BATON_ENGINE_MODEL_LAYER_EXPERTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/linear.h"

namespace baton {

// W2(silu(W1 x) * W3 x).
struct MlpWeights {
  PackedWeight gate_up;  // [2 * width, hidden]: W1's rows, then W3's.
  PackedWeight down;     // [hidden, width]

  int width() const { return down.in(); }
};

// Each expert has memory of its own, so that dropping one gives it back. Thread
// rule: one thread at a time puts and drops; any thread finds meanwhile.
class LayerExperts final {
 public:
  LayerExperts() = default;  // Of a layer without experts.
  explicit LayerExperts(int num_experts);

  int num_experts() const { return static_cast<int>(owned_.size()); }
  // Null where it is not here; valid until it is dropped.
  const MlpWeights* Find(uint32_t expert) const {
    return found_[expert].load(std::memory_order_acquire);
  }
  // REQUIRES: it is not here.
  void Put(uint32_t expert, MlpWeights weights);
  // REQUIRES: it is here, and whoever has found it is done with it.
  void Drop(uint32_t expert);

 private:
  std::vector<std::unique_ptr<const MlpWeights>> owned_;
  // The same, for the threads that look for them.
  std::vector<std::atomic<const MlpWeights*>> found_;
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_LAYER_EXPERTS_H_
