// Weights on their way from the file to the kernels.
#ifndef BATON_ENGINE_MODEL_WEIGHT_MATRIX_H_
#define BATON_ENGINE_MODEL_WEIGHT_MATRIX_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/safetensors.h"
#include "engine/model/weight_storage.h"
#include "kernels/linear.h"

namespace baton {

// Row-major [rows, cols]; one of the two vectors holds the values.
struct WeightMatrix {
  int rows = 0;
  int cols = 0;
  std::vector<uint16_t> bf16;
  std::vector<float> f32;

  PackedWeight Pack() const;
  // Of rows [first, first + num).
  PackedWeight PackRows(int first, int num) const;
  PackedWeight PackRowsTransposed(int first, int num) const;
  // Widened.
  void CopyRow(int row, float* out) const;
};

// Reads values of tensors that CheckTensors has accepted. INVALID_ARGUMENT,
// naming file and tensor, for a value that is not finite. Thread-safe.
class WeightReader final {
 public:
  // Borrows `tensors`.
  WeightReader(const ModelTensors& tensors, WeightStorage storage)
      : tensors_(tensors), storage_(storage) {}

  absl::StatusOr<std::vector<float>> Vector(const std::string& name) const;
  // The rows of all named matrices, one below the other: float32 unless all are
  // bf16 and may stay so. FP8 is dequantised.
  absl::StatusOr<WeightMatrix> Stack(
      std::initializer_list<std::string> names) const;
  // What Stack(names) takes when it is packed.
  size_t PackedBytes(std::initializer_list<std::string> names) const;

 private:
  // The matrix of Stack(names), without its values.
  struct StackedShape {
    int rows = 0;
    int cols = 0;
    bool bf16 = false;
  };
  StackedShape ShapeOf(std::initializer_list<std::string> names) const;

  const ModelTensors& tensors_;
  const WeightStorage storage_;
};

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_WEIGHT_MATRIX_H_
