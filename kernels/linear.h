// y = x W^T, the work-horse: projections, experts, absorbed attention, logits.
#ifndef BATON_KERNELS_LINEAR_H_
#define BATON_KERNELS_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kernels/cpu_context.h"
#include "kernels/matrix_view.h"

namespace baton {

enum class WeightDtype { kF32, kBf16 };

// A weight [out, in], packed at load for the kernels: panels of 16 outputs,
// each k-major, the last panel filled up with zeros.
//   packed := panel*
//   panel  := (w[16 p + 0..15][k])  for k in [0, in)               float32
//   panel  := (w[16 p + 0..15][k, k + 1])  for even k in [0, in)   bf16; where
//             in is odd, the last k + 1 is zero and not used
// Best with 64 outputs or more: so join the gate and up projections of an
// expert. Immutable after construction, so thread-safe. Move-only; owns its
// memory, and a large one gives it back to the system at once.
class PackedWeight {
 public:
  static constexpr int kPanelOutputs = 16;

  PackedWeight() = default;
  // Row-major sources [out, in] with `stride` elements from row to row.
  static PackedWeight FromF32(const float* weight, int out, int in,
                              ptrdiff_t stride);
  // Bf16 bits. Kept as bf16; without CpuContext::bf16_dots, a product with bf16
  // and one with the same values in float32 give the same bits.
  static PackedWeight FromBf16(const uint16_t* weight, int out, int in,
                               ptrdiff_t stride);

  // What one of this shape takes.
  static size_t SizeBytes(int out, int in, WeightDtype dtype);

  int out() const { return out_; }
  int in() const { return in_; }
  WeightDtype dtype() const { return dtype_; }
  const void* panels() const { return panels_.get(); }
  size_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    size_t mapped_bytes;  // 0: of the heap.
    void operator()(void* p) const;
  };

  PackedWeight(int out, int in, WeightDtype dtype);

  int out_ = 0;
  int in_ = 0;
  WeightDtype dtype_ = WeightDtype::kF32;
  size_t size_bytes_ = 0;
  std::unique_ptr<void, Free> panels_;
};

// One product: x [rows, in] float32, y [rows, out] float32. x and y do not
// overlap.
struct LinearTask {
  MatrixView<const float> x;
  const PackedWeight* weight = nullptr;
  MatrixView<float> y;
};

// Each output has one accumulator: FMA over k ascending in blocks of 512, block
// sums added in order. So a row's bits depend on that row and the weight alone.
// With CpuContext::bf16_dots, and a bf16 weight: x is rounded to bf16, k goes
// by pairs, the odd one first, and denormals are flushed (kernels/README.md).
// REQUIRES: x.cols == weight->in(), y.cols == weight->out(), x.rows == y.rows.
void Linear(const CpuContext& context, const LinearTask& task);

// Independent products in one fork and join: the heads of an absorbed
// projection, the experts of a layer. Same bits as one Linear each.
void LinearBatch(const CpuContext& context, std::span<const LinearTask> tasks);

}  // namespace baton

#endif  // BATON_KERNELS_LINEAR_H_
