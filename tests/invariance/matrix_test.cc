// A few cells of the matrix, in which every two settings meet.
#include "tests/invariance/matrix.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr char kModel[] = "models/tiny-deepseek-v3";

// Something that a request may ask for.
struct Ask {
  const char* name;
  bool (*asked)(const GenerationRequest&);
  void (*drop)(GenerationRequest*);
};

constexpr Ask kAsks[] = {
    {"a seed", [](const auto& r) { return r.sampling.temperature != 0; },
     [](auto* r) { ++r->sampling.seed; }},
    {"a temperature", [](const auto& r) { return r.sampling.temperature == 0; },
     [](auto* r) { r->sampling.temperature = 2; }},
    {"top-p", [](const auto& r) { return r.sampling.top_p < 1; },
     [](auto* r) { r->sampling.top_p = 1; }},
    {"min-p", [](const auto& r) { return r.sampling.min_p > 0; },
     [](auto* r) { r->sampling.min_p = 0; }},
    {"top-k", [](const auto& r) { return r.sampling.top_k > 0; },
     [](auto* r) { r->sampling.top_k = 0; }},
    {"repetition penalty",
     [](const auto& r) { return r.sampling.repetition_penalty != 1; },
     [](auto* r) { r->sampling.repetition_penalty = 1; }},
    {"presence penalty",
     [](const auto& r) { return r.sampling.presence_penalty != 0; },
     [](auto* r) { r->sampling.presence_penalty = 0; }},
    {"frequency penalty",
     [](const auto& r) { return r.sampling.frequency_penalty != 0; },
     [](auto* r) { r->sampling.frequency_penalty = 0; }},
    {"logit bias", [](const auto& r) { return !r.sampling.logit_bias.empty(); },
     [](auto* r) { r->sampling.logit_bias.clear(); }},
    {"alternatives",
     [](const auto& r) { return r.sampling.num_top_logprobs > 0; },
     [](auto* r) { --r->sampling.num_top_logprobs; }},
    {"log-probabilities after truncation",
     [](const auto& r) {
       return r.sampling.logprobs_after_truncation &&
              r.sampling.num_top_logprobs > 0;
     },
     [](auto* r) { r->sampling.logprobs_after_truncation = false; }},
    {"log-probabilities of the prompt",
     [](const auto& r) { return r.prompt_logprobs_from.has_value(); },
     [](auto* r) { r->prompt_logprobs_from.reset(); }},
    {"stop tokens", [](const auto& r) { return !r.stop_token_ids.empty(); },
     [](auto* r) { r->stop_token_ids.clear(); }},
    {"min tokens",
     [](const auto& r) {
       return r.min_tokens > 0 && !r.stop_token_ids.empty();
     },
     [](auto* r) { r->min_tokens = 0; }},
    {"samples", [](const auto& r) { return r.num_samples > 1; },
     [](auto* r) { r->sample_index += 5; }},
    {"a resumed answer",
     [](const auto& r) {
       return r.original_prompt_tokens < r.token_ids.size();
     },
     [](auto* r) { r->original_prompt_tokens = r->token_ids.size(); }},
};

const Matrix& TheMatrix() {
  static const auto* const matrix = new Matrix(kModel);
  return *matrix;
}

using Samples = std::vector<GeneratedSequence>;

// What each request's samples must give.
std::vector<Samples> ExpectedByRequest() {
  std::vector<Samples> all;
  auto next = TheMatrix().expected().begin();
  for (const GenerationRequest& request : TheMatrix().requests()) {
    all.emplace_back(next, next + request.num_samples);
    next += request.num_samples;
  }
  return all;
}

TEST(MatrixTest, TheRequestsAskForEverythingAndAllOfItShows) {
  std::vector<GenerationRequest> changed;
  // What they give as they are, and by whose name they were changed.
  Samples unchanged;
  std::vector<const char*> names;
  const std::vector<Samples> expected = ExpectedByRequest();
  for (const Ask& ask : kAsks) {
    const size_t before = changed.size();
    for (size_t i = 0; i < expected.size(); ++i) {
      const GenerationRequest& request = TheMatrix().requests()[i];
      if (!ask.asked(request)) continue;
      ask.drop(&changed.emplace_back(request));
      changed.back().id.counter = changed.size();
      unchanged.insert(unchanged.end(), expected[i].begin(), expected[i].end());
      names.insert(names.end(), request.num_samples, ask.name);
    }
    EXPECT_GE(changed.size() - before, 4u) << ask.name;
  }
  const Samples got =
      RunRequests(kModel, MatrixCell{.batch = 64}.config(), changed).sequences;
  ASSERT_EQ(got.size(), unchanged.size());
  std::map<std::string, uint32_t> differ;
  for (size_t i = 0; i < got.size(); ++i) {
    differ[names[i]] += got[i] != unchanged[i];
  }
  for (const auto& [name, count] : differ) {
    std::cout << name << ": " << count << " samples differ without it\n";
    EXPECT_GE(count, 3u) << name;
  }
}

TEST(MatrixTest, SamplesOfARequestDifferUnlessGreedy) {
  const std::vector<Samples> expected = ExpectedByRequest();
  uint32_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const Samples& samples = expected[i];
    const bool equal = std::ranges::all_of(samples, [&](const auto& sample) {
      return sample.token_ids == samples[0].token_ids;
    });
    different += !equal;
    if (TheMatrix().requests()[i].sampling.temperature == 0) {
      EXPECT_TRUE(equal) << i;
    }
  }
  EXPECT_GE(different, 4u);
}

TEST(MatrixTest, AllCellsAreDifferentAndTheImpossibleOnesAreLeftOut) {
  std::set<std::string> names;
  for (const MatrixCell& cell : AllCells()) {
    EXPECT_TRUE(names.insert(cell.config().ToString()).second);
  }
  EXPECT_EQ(names.size(), 3u * 5 * (3 + 2) * 2);
}

TEST(MatrixTest, EveryPairOfSettingsGivesTheSameTokens) {
  const Matrix& matrix = TheMatrix();
  std::vector<CellResult> results;
  for (const MatrixCell& cell : PairwiseCells()) {
    results.push_back(matrix.Run(cell));
    EXPECT_EQ(Complaint(results.back()), "") << cell.config().ToString();
  }
  PrintMatrix(matrix, results, std::cout);
}

}  // namespace
}  // namespace baton
