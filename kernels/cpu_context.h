// What every CPU kernel needs besides its data: the vector width and the
// threads.
#ifndef BATON_KERNELS_CPU_CONTEXT_H_
#define BATON_KERNELS_CPU_CONTEXT_H_

#include <string_view>
#include <vector>

namespace baton {

class ThreadPool;

// The width that kernels were compiled for. All give the same bits.
enum class VectorIsa { kArray, kAvx2, kAvx512 };

// How Linear multiplies by a bf16 weight; changes bits.
enum class Bf16Dots {
  kOff,       // By a float32 x.
  kOn,        // By x rounded to bf16, as the instruction VDPBF16PS does.
  kEmulated,  // The same bits without the instruction (for tests).
};

std::string_view VectorIsaName(VectorIsa isa);

// The widths that this CPU can run, narrowest first; never empty.
std::vector<VectorIsa> SupportedVectorIsas();

// Passed by value or const reference; borrows the pool, which must outlive it.
struct CpuContext {
  VectorIsa isa = VectorIsa::kArray;
  ThreadPool* threads = nullptr;  // Null: the calling thread alone.
  Bf16Dots bf16_dots = Bf16Dots::kOff;
};

}  // namespace baton

#endif  // BATON_KERNELS_CPU_CONTEXT_H_
