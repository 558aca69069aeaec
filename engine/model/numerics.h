// How results are computed, where more than one definition is on offer.
#ifndef BATON_ENGINE_MODEL_NUMERICS_H_
#define BATON_ENGINE_MODEL_NUMERICS_H_

#include <string_view>

namespace baton {

// Each gives a request the same bits in any batch and chunk; the modes differ
// from each other by rounding, so the fingerprint names the mode.
enum class Numerics {
  kExact,  // Attention absorbed at every position.
  kFast,   // Expanded below the request's original prompt length.
  // kFast, and matrices of bf16 are multiplied by activations rounded to bf16.
  kFastBf16,
};

// "exact", "fast", "fast_bf16".
constexpr std::string_view NumericsName(Numerics numerics) {
  switch (numerics) {
    case Numerics::kExact:
      return "exact";
    case Numerics::kFast:
      return "fast";
    case Numerics::kFastBf16:
      return "fast_bf16";
  }
  return "";
}

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_NUMERICS_H_
