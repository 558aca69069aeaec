#include "comm/local_expert_dispatch.h"

#include <algorithm>
#include <cstddef>

#include "base/logging.h"

namespace baton {

LocalExpertDispatch::LocalExpertDispatch(const Options& options)
    : options_(options) {
  const size_t max_rows =
      static_cast<size_t>(options.max_tokens) * options.top_k;
  offsets_.resize(options.num_experts + 1);
  next_row_.resize(options.num_experts);
  row_of_choice_.resize(max_rows);
  inputs_.resize(max_rows * options.hidden_size);
  outputs_.resize(max_rows * options.hidden_size);
}

ExpertRows LocalExpertDispatch::Dispatch(MatrixView<const float> x,
                                         MatrixView<const int32_t> experts) {
  CHECK_LE(x.rows, options_.max_tokens);
  CHECK_EQ(x.rows, experts.rows);
  CHECK_EQ(x.cols, options_.hidden_size);
  CHECK_EQ(experts.cols, options_.top_k);
  num_rows_ = x.rows * options_.top_k;
  std::ranges::fill(offsets_, 0);
  for (int t = 0; t < x.rows; ++t) {
    for (int k = 0; k < options_.top_k; ++k) {
      ++offsets_[experts.row(t)[k] + 1];
    }
  }
  for (int e = 0; e < options_.num_experts; ++e) {
    next_row_[e] = offsets_[e];
    offsets_[e + 1] += offsets_[e];
  }
  const MatrixView<float> inputs =
      Dense(inputs_.data(), num_rows_, options_.hidden_size);
  for (int t = 0; t < x.rows; ++t) {
    for (int k = 0; k < options_.top_k; ++k) {
      const int32_t row = next_row_[experts.row(t)[k]]++;
      row_of_choice_[t * options_.top_k + k] = row;
      std::copy_n(x.row(t), x.cols, inputs.row(row));
    }
  }
  return {offsets_, inputs,
          Dense(outputs_.data(), num_rows_, options_.hidden_size)};
}

void LocalExpertDispatch::Combine(MatrixView<float> routed) {
  CHECK_EQ(routed.rows, num_rows_);
  CHECK_EQ(routed.cols, options_.hidden_size);
  const MatrixView<const float> outputs =
      Dense<const float>(outputs_.data(), num_rows_, options_.hidden_size);
  for (int i = 0; i < num_rows_; ++i) {
    std::copy_n(outputs.row(row_of_choice_[i]), routed.cols, routed.row(i));
  }
}

}  // namespace baton
