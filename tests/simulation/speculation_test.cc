// Drafts change speed, never text: whatever is refused, wherever the end lies.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/matrix_view.h"
#include "tests/fakes/engine_world.h"
#include "tests/fakes/fake_model_runner.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {
namespace {

enum class End { kStopToken, kMaxTokens, kContext };

// An answer of `length` tokens; false if there is none that ends so.
bool EndAfter(End end, uint32_t length, FakeRank::Options* options,
              GenerationRequest* request) {
  if (end == End::kMaxTokens) request->max_tokens = length;
  if (end == End::kContext) {
    options->model.max_context_tokens =
        static_cast<uint32_t>(request->token_ids.size()) + length;
  }
  if (end != End::kStopToken) return true;
  const std::vector<uint32_t> tokens =
      ExpectedOf(options->model, *request).tokens;
  request->stop_token_ids = {tokens[length - 1]};
  return std::find(tokens.begin(), tokens.end(), tokens[length - 1]) ==
         tokens.begin() + length - 1;
}

std::vector<uint32_t> TokensWithoutDrafts(FakeRank::Options options,
                                          const GenerationRequest& request) {
  options.engine.num_draft_tokens = 0;
  EngineWorld world(options);
  const auto& done = world.Submit(request);
  world.RunUntilIdle();
  return done.sink.tokens;
}

uint32_t Sum(const std::array<uint32_t, kMaxDraftTokens>& counts) {
  return std::accumulate(counts.begin(), counts.end(), 0u);
}

// Drafts that a step took, and tokens of them all that counted.
using Accepted = std::pair<uint32_t, uint32_t>;

class SpeculationTest : public testing::Test {
 protected:
  // Runs it with drafts at each depth; what it saw is at depth 1.
  void Run(FakeRank::Options options, const GenerationRequest& request,
           std::set<Accepted>* at_end) {
    options.engine.num_draft_tokens = kMaxDraftTokens;
    const std::vector<uint32_t> plain = TokensWithoutDrafts(options, request);
    for (uint32_t depth : {3, 2, 1}) {
      options.engine.pipeline_depth = depth;
      EngineWorld world(options);
      const auto& done = world.Submit(request);
      world.RunUntilIdle();
      world.ExpectAllExact();
      ASSERT_EQ(done.sink.tokens, plain);
      if (depth > 1) continue;
      for (const StepStats& step : world.rank().steps()) {
        if (Sum(step.drafts_verified) < kMaxDraftTokens) continue;
        refused_at_.insert(Sum(step.drafts_accepted));
      }
      const StepStats& last = world.rank().steps().back();
      at_end->insert({Sum(last.drafts_accepted), last.tokens});
    }
  }

  void RunAllEnds(uint32_t right_drafts, uint64_t counter, uint32_t length) {
    for (const auto& [end, at_end] : {std::pair(End::kStopToken, &at_stop_),
                                      {End::kMaxTokens, &at_length_},
                                      {End::kContext, &at_context_}}) {
      FakeRank::Options options = {.num_blocks = 4};
      options.model.right_drafts = right_drafts;
      options.model.bytes_per_token = 8;
      GenerationRequest request = MakeRequest(counter, 57 + counter, 20);
      if (!EndAfter(end, length, &options, &request)) continue;
      Run(options, request, at_end);
    }
  }

  // All that happened: by the number of drafts taken in a full step; in the
  // last step, by how the answer ends.
  std::set<uint32_t> refused_at_;
  std::set<Accepted> at_stop_;
  std::set<Accepted> at_length_;
  std::set<Accepted> at_context_;
};

TEST_F(SpeculationTest, ARefusalAndAnEndAtEveryPlaceOfARunChangeNoToken) {
  for (uint32_t right_drafts : {256, 225, 190, 128, 0}) {
    for (uint64_t counter = 0; counter < 16; ++counter) {
      for (uint32_t length = 1; length <= 14; ++length) {
        RunAllEnds(right_drafts, counter, length);
      }
    }
  }
  EXPECT_EQ(refused_at_, (std::set<uint32_t>{0, 1, 2, 3, 4, 5}));
  for (uint32_t accepted = 0; accepted <= kMaxDraftTokens; ++accepted) {
    // The device knows the length: nothing is drawn behind it.
    EXPECT_TRUE(at_length_.contains({accepted, accepted + 1})) << accepted;
    EXPECT_TRUE(at_context_.contains({accepted, accepted + 1})) << accepted;
    // It does not know the stop tokens: whatever it accepted, the stop may be
    // any of these.
    for (uint32_t tokens = 1; tokens <= accepted + 1; ++tokens) {
      EXPECT_TRUE(at_stop_.contains({accepted, tokens}))
          << accepted << " accepted, the stop is number " << tokens;
    }
  }
}

TEST_F(SpeculationTest, DraftsThatDoNotPayAreHardlyMade) {
  FakeRank::Options options = {.num_blocks = 4};
  options.model.right_drafts = 0;
  options.engine.num_draft_tokens = kMaxDraftTokens;
  options.engine.pipeline_depth = 1;
  // A row more takes as long as the first one.
  options.engine.step_curve = {{.rows = 1, .time = absl::Milliseconds(1)},
                               {.rows = 100, .time = absl::Milliseconds(100)}};
  EngineWorld world(options);
  world.Submit(MakeRequest(1, 20, 200));
  world.RunUntilIdle();
  world.ExpectAllWhole();
  uint32_t steps = 0;
  uint32_t made = 0;
  for (const StepStats& step : world.rank().steps()) {
    if (step.prefill) continue;
    ++steps;
    made += step.drafts_made;
  }
  EXPECT_GT(steps, 150u);
  // One a step, and now and then one more.
  EXPECT_GT(made, steps);
  EXPECT_LT(made, 2 * steps);
}

// The true distribution of each token of an answer at temperature 1, by
// enumeration.
class Enumeration {
 public:
  Enumeration(const FakeModelRunner::Options& options, uint32_t length)
      : model_(options),
        pool_(1, model_.info().cache.block_bytes()),
        probabilities_(length, std::vector<double>(options.vocab_size)) {
    model_.BindKvPool(pool_.get());
  }

  // REQUIRES: with the answer, all in one block.
  const std::vector<std::vector<double>>& Of(
      const std::vector<uint32_t>& prompt) {
    std::vector<uint32_t> tokens;
    for (uint32_t token : prompt) {
      Write(token, tokens.size());
      tokens.push_back(token);
    }
    Branch(tokens.size(), 0, 1);
    return probabilities_;
  }

 private:
  void Write(uint32_t token, size_t position) {
    const auto row_position = static_cast<int32_t>(position);
    const int32_t logits_row = 0;
    const uint32_t block = 0;
    const SequenceRows rows = {0, 1, &block};
    logits_.resize(model_.info().vocab_size);
    model_.Forward(
        {.token_ids = {&token, 1},
         .positions = {&row_position, 1},
         .sequences = {&rows, 1},
         .logits_rows = {&logits_row, 1}},
        {.logits = Dense(logits_.data(), 1, static_cast<int>(logits_.size()))});
  }

  // logits_ are of the token at `position`.
  void Branch(size_t position, size_t index, double probability) {
    std::vector<double> weights(logits_.begin(), logits_.end());
    for (double& weight : weights) weight = std::exp(weight);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (uint32_t token = 0; token < weights.size(); ++token) {
      const double p = probability * weights[token] / sum;
      probabilities_[index][token] += p;
      if (index + 1 == probabilities_.size()) continue;
      Write(token, position);
      Branch(position + 1, index + 1, p);
    }
  }

  FakeModelRunner model_;
  HeapKvPool pool_;
  std::vector<float> logits_;
  std::vector<std::vector<double>> probabilities_;
};

// The probability of a chi-squared so large, by Wilson and Hilferty's
// approximation (1931).
double ChiSquaredTail(double chi_squared, double freedom) {
  const double spread = 2 / (9 * freedom);
  const double z =
      (std::cbrt(chi_squared / freedom) - (1 - spread)) / std::sqrt(spread);
  return std::erfc(z / std::sqrt(2.0)) / 2;
}

double PValue(const std::vector<uint32_t>& counts,
              const std::vector<double>& probabilities, uint32_t draws) {
  double chi_squared = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * draws;
    chi_squared += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return ChiSquaredTail(chi_squared, static_cast<double>(counts.size()) - 1);
}

// [tokens of an answer, vocabulary]: how many of `requests` drew it there.
std::vector<std::vector<uint32_t>> CountTokens(const FakeRank::Options& options,
                                               GenerationRequest request,
                                               uint32_t requests) {
  EngineWorld world(options);
  for (uint32_t i = 0; i < requests; ++i) {
    request.id.counter = i;
    request.sampling.seed = i;
    world.Submit(request);
  }
  // Without a look at the invariants in each turn.
  while (!world.engine().idle()) {
    world.engine().Advance();
    world.rank().stream().Poll();
  }
  std::vector<std::vector<uint32_t>> counts(
      request.max_tokens, std::vector<uint32_t>(options.model.vocab_size, 0));
  for (const auto& done : world.requests()) {
    for (uint32_t i = 0; i < request.max_tokens; ++i) {
      ++counts[i][done.sink.tokens.at(i)];
    }
  }
  return counts;
}

TEST(SpeculationDistributionTest, DraftsLeaveItAlone) {
  constexpr uint32_t kRequests = 20000;
  GenerationRequest request = MakeRequest(1, 1, 4);
  request.token_ids = {3, 1, 4, 1, 5, 9};
  request.original_prompt_tokens = 6;
  request.sampling = SamplingParams();  // Nothing but the temperature of 1.
  for (uint32_t right_drafts : {0, 128, 256}) {
    FakeRank::Options options = {.num_blocks = 200};
    options.engine.num_draft_tokens = 3;
    options.engine.max_waiting_requests = kRequests;
    options.model = {.vocab_size = 12, .bytes_per_token = 8};
    options.model.right_drafts = right_drafts;
    const auto counts = CountTokens(options, request, kRequests);
    Enumeration enumeration(options.model, request.max_tokens);
    const auto& truth = enumeration.Of(request.token_ids);
    for (uint32_t i = 0; i < request.max_tokens; ++i) {
      const double p = PValue(counts[i], truth[i], kRequests);
      std::cerr << "right drafts " << right_drafts << " of 256, token " << i
                << ", p " << p << '\n';
      EXPECT_GT(p, 0.001);
    }
  }
}

// The test above can fail: the first token's distribution is not the second's.
TEST(SpeculationDistributionTest, AnotherDistributionIsToldFromTheTrueOne) {
  constexpr uint32_t kDraws = 20000;
  Enumeration enumeration({.vocab_size = 12, .bytes_per_token = 8}, 2);
  const auto& truth = enumeration.Of({3, 1, 4});
  std::vector<uint32_t> counts;
  for (double p : truth[1]) {
    counts.push_back(static_cast<uint32_t>(p * kDraws));
  }
  EXPECT_GT(PValue(counts, truth[1], kDraws), 0.99);
  EXPECT_LT(PValue(counts, truth[0], kDraws), 0.001);
}

}  // namespace
}  // namespace baton
