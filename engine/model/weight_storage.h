// How weights are kept in memory.
#ifndef BATON_ENGINE_MODEL_WEIGHT_STORAGE_H_
#define BATON_ENGINE_MODEL_WEIGHT_STORAGE_H_

namespace baton {

// Never changes a result: no choice rounds a weight.
enum class WeightStorage {
  kAsStored,  // bf16 stays bf16; float32 and dequantised FP8 are float32.
  // All widened to float32: twice the memory, a little less work. Refused with
  // Numerics::kFastBf16.
  kF32,
  kBf16,  // Refuses a model that has a matrix in another dtype.
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_WEIGHT_STORAGE_H_
