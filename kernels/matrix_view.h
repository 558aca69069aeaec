// A borrowed row-major matrix of elements with a row stride.
#ifndef BATON_KERNELS_MATRIX_VIEW_H_
#define BATON_KERNELS_MATRIX_VIEW_H_

#include <cstddef>

namespace baton {

// rows x cols; row r starts at data + r * stride. Owns nothing.
template <typename T>
struct MatrixView {
  T* data = nullptr;
  int rows = 0;
  int cols = 0;
  ptrdiff_t stride = 0;  // Elements, >= cols.

  T* row(int r) const { return data + r * stride; }
  operator MatrixView<const T>() const {
    return {data, rows, cols, stride};
  }  // NOLINT
};

// A dense matrix: stride == cols.
template <typename T>
MatrixView<T> Dense(T* data, int rows, int cols) {
  return {data, rows, cols, cols};
}

// Columns [first, first + cols) of a matrix.
template <typename T>
MatrixView<T> Columns(MatrixView<T> matrix, int first, int cols) {
  return {matrix.data + first, matrix.rows, cols, matrix.stride};
}

// Rows [first, first + rows).
template <typename T>
MatrixView<T> Rows(MatrixView<T> matrix, int first, int rows) {
  return {matrix.row(first), rows, matrix.cols, matrix.stride};
}

}  // namespace baton

#endif  // BATON_KERNELS_MATRIX_VIEW_H_
