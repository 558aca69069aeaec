#include "kernels/cpu/kernel_table.h"

#include "base/logging.h"
#include "kernels/cpu_context.h"

namespace baton {

namespace array {
extern const KernelTable kKernels;
}
namespace avx2 {
extern const KernelTable kKernels;
}
namespace avx512 {
extern const KernelTable kKernels;
}

size_t AttentionScratchFloats(int latent_dim, int rope_dim) {
  const size_t values =
      static_cast<size_t>((latent_dim + 3) / 4 + (rope_dim + 3) / 4) * 4;
  const size_t group = static_cast<size_t>(latent_dim + rope_dim) * 16;
  return (2 * values + kMaxAttentionPairs) * 64 + group;
}

size_t DrawScratchSize(int vocab) {
  return 3 * (static_cast<size_t>(vocab) + 16);
}

const KernelTable& KernelsFor(VectorIsa isa) {
  switch (isa) {
    case VectorIsa::kArray:
      return array::kKernels;
    case VectorIsa::kAvx2:
      return avx2::kKernels;
    case VectorIsa::kAvx512:
      return avx512::kKernels;
  }
  LOG(FATAL) << "vector isa " << static_cast<int>(isa);
  return array::kKernels;
}

}  // namespace baton
