#include "kernels/cpu_context.h"

#include "base/logging.h"

namespace baton {

std::string_view VectorIsaName(VectorIsa isa) {
  switch (isa) {
    case VectorIsa::kArray:
      return "array";
    case VectorIsa::kAvx2:
      return "avx2";
    case VectorIsa::kAvx512:
      return "avx512";
  }
  LOG(FATAL) << "vector isa " << static_cast<int>(isa);
  return "";
}

std::vector<VectorIsa> SupportedVectorIsas() {
  std::vector<VectorIsa> isas = {VectorIsa::kArray};
  // These builtins ask the operating system's XCR0 too.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    isas.push_back(VectorIsa::kAvx2);
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
      isas.push_back(VectorIsa::kAvx512);
    }
  }
  return isas;
}

}  // namespace baton
