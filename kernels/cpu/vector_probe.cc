#include "kernels/cpu/vector_probe.h"

namespace baton {

namespace array {
extern const VectorProbe kProbe;
}
namespace avx2 {
extern const VectorProbe kProbe;
}
namespace avx512 {
extern const VectorProbe kProbe;
}

const VectorProbe& VectorProbeFor(VectorIsa isa) {
  switch (isa) {
    case VectorIsa::kAvx2:
      return avx2::kProbe;
    case VectorIsa::kAvx512:
      return avx512::kProbe;
    default:
      return array::kProbe;
  }
}

}  // namespace baton
