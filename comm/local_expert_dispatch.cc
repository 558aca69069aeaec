#include "comm/local_expert_dispatch.h"

#include <algorithm>
#include <cstddef>

#include "base/logging.h"

namespace baton {

LocalExpertDispatch::LocalExpertDispatch(const ExpertShape& shape)
    : shape_(shape), chooser_(shape, shape.num_experts) {
  const auto rows = static_cast<size_t>(max_rows());
  offsets_.resize(static_cast<size_t>(shape.num_experts) + 1);
  choices_.resize(rows);
  inputs_.resize(rows * shape.hidden_size);
  outputs_.resize(rows * shape.hidden_size);
}

ExpertRows LocalExpertDispatch::Dispatch(MatrixView<const float> x,
                                         MatrixView<const int32_t> experts,
                                         const ExpertSlots& slots) {
  CHECK_LE(x.rows, shape_.max_tokens);
  CHECK_EQ(x.rows, experts.rows);
  CHECK_EQ(x.cols, shape_.hidden_size);
  CHECK_EQ(experts.cols, shape_.top_k);
  num_rows_ = x.rows * shape_.top_k;
  chooser_.Choose(experts, slots, /*rank=*/0, {offsets_, choices_});
  const MatrixView<float> inputs =
      Dense(inputs_.data(), num_rows_, shape_.hidden_size);
  for (int i = 0; i < num_rows_; ++i) {
    std::copy_n(x.row(choices_[i] / shape_.top_k), x.cols, inputs.row(i));
  }
  return {offsets_, slots.experts, inputs,
          Dense(outputs_.data(), num_rows_, shape_.hidden_size)};
}

void LocalExpertDispatch::Combine(MatrixView<float> routed) {
  CHECK_EQ(routed.rows, num_rows_);
  CHECK_EQ(routed.cols, shape_.hidden_size);
  const MatrixView<const float> outputs =
      Dense<const float>(outputs_.data(), num_rows_, shape_.hidden_size);
  for (int i = 0; i < num_rows_; ++i) {
    std::copy_n(outputs.row(i), routed.cols, routed.row(choices_[i]));
  }
}

}  // namespace baton
