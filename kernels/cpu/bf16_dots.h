// Whether the CPU's own dot products of bf16 may be used.
#ifndef BATON_KERNELS_CPU_BF16_DOTS_H_
#define BATON_KERNELS_CPU_BF16_DOTS_H_

#include "kernels/cpu_context.h"

namespace baton {

// True if the CPU has AVX512_BF16, the width can use it, and it has been seen
// to give the bits of the definition. Tried once. Thread-safe.
bool HasNativeBf16Dots(VectorIsa isa);

}  // namespace baton

#endif  // BATON_KERNELS_CPU_BF16_DOTS_H_
