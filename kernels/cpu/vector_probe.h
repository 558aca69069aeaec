// The functions of vector_math.h of each instruction set, for their test.
#ifndef BATON_KERNELS_CPU_VECTOR_PROBE_H_
#define BATON_KERNELS_CPU_VECTOR_PROBE_H_

#include <cstdint>

#include "kernels/cpu_context.h"

namespace baton {

// Each works on 16 values in place.
struct VectorProbe {
  void (*exp)(float* x);
  void (*log)(float* x);
  void (*log1p)(float* x);
  void (*gumbel)(const uint32_t* words, float* y);
};

const VectorProbe& VectorProbeFor(VectorIsa isa);

}  // namespace baton

#endif  // BATON_KERNELS_CPU_VECTOR_PROBE_H_
