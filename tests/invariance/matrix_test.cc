// A few cells of the matrix, in which every two settings meet.
#include "tests/invariance/matrix.h"

#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr char kModel[] = "models/tiny-deepseek-v3";

// Takes something out of a request; false: it did not ask for it.
using Drop = bool (*)(GenerationRequest*);

// Of the samples that ask for it: how many come out otherwise without.
int NumChanged(const Matrix& matrix, Drop drop) {
  const std::vector<GenerationRequest> alone =
      EachSampleAlone(matrix.requests());
  std::vector<GenerationRequest> without;
  std::vector<GeneratedSequence> with;
  for (size_t i = 0; i < alone.size(); ++i) {
    GenerationRequest request = alone[i];
    if (!drop(&request)) continue;
    without.push_back(request);
    with.push_back(matrix.expected()[i]);
  }
  const MachineConfig config = MatrixCell{.batch = 64}.config();
  const std::vector<GeneratedSequence> sequences =
      RunRequests(kModel, config, without).sequences;
  int changed = 0;
  for (size_t i = 0; i < with.size(); ++i) {
    changed += sequences[i] == with[i] ? 0 : 1;
  }
  return changed;
}

TEST(MatrixTest, EverythingThatARequestMayAskForMatters) {
  using R = GenerationRequest;
  const Matrix matrix(kModel);
  const std::map<std::string, Drop> drops = {
      {"sample_index",
       [](R* r) {
         return std::exchange(r->sample_index, r->sample_index + 8) != 0;
       }},
      {"temperature",
       [](R* r) { return std::exchange(r->sampling.temperature, 0.0f) != 0; }},
      {"top_p", [](R* r) { return std::exchange(r->sampling.top_p, 1) != 1; }},
      {"min_p", [](R* r) { return std::exchange(r->sampling.min_p, 0) != 0; }},
      {"top_k", [](R* r) { return std::exchange(r->sampling.top_k, 0) != 0; }},
      {"repetition_penalty",
       [](R* r) {
         return std::exchange(r->sampling.repetition_penalty, 1) != 1;
       }},
      {"presence_penalty",
       [](R* r) {
         return std::exchange(r->sampling.presence_penalty, 0) != 0;
       }},
      {"frequency_penalty",
       [](R* r) {
         return std::exchange(r->sampling.frequency_penalty, 0) != 0;
       }},
      {"logit_bias",
       [](R* r) { return !std::exchange(r->sampling.logit_bias, {}).empty(); }},
      {"num_top_logprobs",
       [](R* r) {
         return std::exchange(r->sampling.num_top_logprobs, 0) != 0;
       }},
      {"logprobs_after_truncation",
       [](R* r) {
         return std::exchange(r->sampling.logprobs_after_truncation, false);
       }},
      {"min_tokens", [](R* r) { return std::exchange(r->min_tokens, 0) != 0; }},
      {"stop_token_ids",
       [](R* r) { return !std::exchange(r->stop_token_ids, {}).empty(); }},
      {"prompt_logprobs_from", [](R* r) {
         return std::exchange(r->prompt_logprobs_from, std::nullopt)
             .has_value();
       }}};
  for (const auto& [name, drop] : drops) {
    const int changed = NumChanged(matrix, drop);
    std::cout << name << " " << changed << std::endl;
    EXPECT_GE(changed, 5) << name;
  }
}

TEST(MatrixTest, AllCellsAreDifferentAndTheImpossibleOnesAreLeftOut) {
  std::set<std::string> names;
  for (const MatrixCell& cell : AllCells()) {
    EXPECT_TRUE(names.insert(cell.config().ToString()).second);
  }
  EXPECT_EQ(names.size(), 3u * 5 * (3 + 2) * 2);
}

TEST(MatrixTest, EveryPairOfSettingsGivesTheSameTokens) {
  const Matrix matrix(kModel);
  std::vector<CellResult> results;
  for (const MatrixCell& cell : PairwiseCells()) {
    results.push_back(matrix.Run(cell));
    EXPECT_EQ(Complaint(results.back()), "") << cell.config().ToString();
  }
  PrintMatrix(matrix, results, std::cout);
}

}  // namespace
}  // namespace baton
