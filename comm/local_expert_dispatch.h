// ExpertDispatch for a group of one rank: all experts are here.
#ifndef BATON_COMM_LOCAL_EXPERT_DISPATCH_H_
#define BATON_COMM_LOCAL_EXPERT_DISPATCH_H_

#include <cstdint>
#include <vector>

#include "comm/expert_dispatch.h"

namespace baton {

// Groups rows by expert with a counting sort: an expert's rows are in the order
// of their tokens. Allocates at construction alone.
class LocalExpertDispatch final : public ExpertDispatch {
 public:
  struct Options {
    int num_experts = 0;
    int top_k = 0;
    int hidden_size = 0;
    int max_tokens = 0;
  };
  explicit LocalExpertDispatch(const Options& options);

  ExpertRows Dispatch(MatrixView<const float> x,
                      MatrixView<const int32_t> experts) override;
  void Combine(MatrixView<float> routed) override;

 private:
  const Options options_;

  int num_rows_ = 0;              // tokens * top_k of the layer in exchange.
  std::vector<int32_t> offsets_;  // [experts + 1]
  // Row t * top_k + k of `routed` is row row_of_choice_[t * top_k + k] here.
  std::vector<int32_t> row_of_choice_;
  std::vector<int32_t> next_row_;  // [experts]
  std::vector<float> inputs_;
  std::vector<float> outputs_;
};

}  // namespace baton

#endif  // BATON_COMM_LOCAL_EXPERT_DISPATCH_H_
