#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_probe.h"

namespace baton::BATON_ISA_NAMESPACE {
namespace {

void ProbeExp(float* x) { Store(x, Exp(Load(x))); }
void ProbeLog(float* x) { Store(x, Log(Load(x))); }
void ProbeLog1p(float* x) { Store(x, Log1p(Load(x))); }
void ProbeGumbel(const uint32_t* words, float* y) {
  Store(y, Gumbel(Load(reinterpret_cast<const int32_t*>(words))));
}

}  // namespace

extern const VectorProbe kProbe;
const VectorProbe kProbe = {ProbeExp, ProbeLog, ProbeLog1p, ProbeGumbel};

}  // namespace baton::BATON_ISA_NAMESPACE
