// Reproducible test data, the same with every standard library.
#ifndef BATON_KERNELS_REFERENCE_RANDOM_VALUES_H_
#define BATON_KERNELS_REFERENCE_RANDOM_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton {

// SplitMix64. Thread-compatible.
class RandomValues final {
 public:
  explicit RandomValues(uint64_t seed) : state_(seed) {}

  uint64_t Next();
  // In [0, limit).
  int Below(int limit);
  // In [0, 1).
  double Uniform();
  // Roughly normal, of standard deviation `scale`.
  float Normal(float scale = 1);
  std::vector<float> Normals(size_t n, float scale = 1);

 private:
  uint64_t state_;
};

}  // namespace baton

#endif  // BATON_KERNELS_REFERENCE_RANDOM_VALUES_H_
