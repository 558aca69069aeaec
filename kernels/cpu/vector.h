// The vector type of this translation unit: F32x16, I32x16 and M16 in the
// namespace of its instruction set, chosen by the build. Each of the three
// widths defines the same names with the same bits for every operation.
//
// Code that includes this is compiled three times with different -m flags, so
// all of it must be static or in BATON_ISA_NAMESPACE and use no inline function
// of a shared header: the linker keeps one copy of those, for all callers.
#ifndef BATON_KERNELS_CPU_VECTOR_H_
#define BATON_KERNELS_CPU_VECTOR_H_

#define BATON_INLINE [[gnu::always_inline]] static inline

#if defined(BATON_VECTOR_AVX512)
#define BATON_ISA_NAMESPACE avx512
#include "kernels/cpu/vector_avx512_integer.h"
#elif defined(BATON_VECTOR_AVX2)
#define BATON_ISA_NAMESPACE avx2
#include "kernels/cpu/vector_avx2_integer.h"
#else
#define BATON_ISA_NAMESPACE array
#include "kernels/cpu/vector_array_integer.h"
#endif

#endif  // BATON_KERNELS_CPU_VECTOR_H_
