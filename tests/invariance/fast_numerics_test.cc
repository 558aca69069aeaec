// --numerics=fast, and fast_bf16, keep the promise of exact: a request's tokens
// and log-probabilities are the same however they are computed, since whether a
// row is computed in expanded form depends on its position and on the length of
// the request's original prompt alone.
#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/numerics.h"
#include "gtest/gtest.h"
#include "tests/invariance/token_machine.h"

namespace baton {
namespace {

constexpr char kModel[] = "models/tiny-deepseek-v3";
constexpr uint32_t kVocabSize = 4096;

struct Kind {
  const char* name;
  Numerics numerics;
  CacheDtype cache;
};

class FastNumericsTest : public testing::TestWithParam<Kind> {
 protected:
  FastNumericsTest() : requests_(MixedRequests(16, kVocabSize)) {
    config_.isa = SupportedVectorIsas().back();
    config_.numerics = GetParam().numerics;
    config_.cache = GetParam().cache;
    expected_ = RunRequests(kModel, config_, requests_).sequences;
  }

  // What `config_` gives is what the simplest way gave.
  void ExpectSame() {
    const MachineResult result = RunRequests(kModel, config_, requests_);
    const size_t count = expected_.size();
    ASSERT_EQ(result.sequences.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_TRUE(result.sequences[i] == expected_[i])
          << config_.ToString() << ", request " << i;
    }
    if (config_.preempt_before_every_token) {
      EXPECT_GE(result.num_preempted_indices, config_.num_draft_tokens == 0
                                                  ? NumTokens(expected_) - count
                                                  : count)
          << config_.ToString();
    }
  }

  const std::vector<GenerationRequest> requests_;
  MachineConfig config_;
  std::vector<GeneratedSequence> expected_;
};

TEST_P(FastNumericsTest, ChunksOfAnySize) {
  for (const uint32_t chunk : {1, 7, 64, 65}) {
    config_.max_chunk_tokens = chunk;
    ExpectSame();
  }
}

TEST_P(FastNumericsTest, AnyBatch) {
  for (const uint32_t batch : {2, 5, 16}) {
    config_.max_running_requests = batch;
    ExpectSame();
  }
}

TEST_P(FastNumericsTest, EveryVectorWidthAndTwoThreads) {
  for (const VectorIsa isa : SupportedVectorIsas()) {
    config_.isa = isa;
    config_.threads = 3 - config_.threads;
    ExpectSame();
  }
}

TEST_P(FastNumericsTest, DepthAndDrafts) {
  config_.max_running_requests = 8;
  for (const uint32_t depth : {1, 2, 3}) {
    for (const uint32_t drafts : {0, 1, 5}) {
      config_.pipeline_depth = depth;
      config_.num_draft_tokens = drafts;
      ExpectSame();
    }
  }
}

// Generated positions are recomputed in the form that they had.
TEST_P(FastNumericsTest, PreemptionBeforeEveryToken) {
  config_.preempt_before_every_token = true;
  for (const uint32_t chunk : {7, 512}) {
    for (const uint32_t drafts : {0, 2}) {
      config_.max_chunk_tokens = chunk;
      config_.num_draft_tokens = drafts;
      ExpectSame();
    }
  }
}

TEST_P(FastNumericsTest, SplitOverTwoEngines) {
  config_.split = PoolSplit::kSharedMemory;
  for (const bool preempted : {false, true}) {
    config_.preempt_before_every_token = preempted;
    config_.max_running_requests = preempted ? 5 : 1;
    config_.max_chunk_tokens = preempted ? 33 : 512;
    ExpectSame();
  }
}

// As a router resumes it elsewhere, from the tokens that it holds.
TEST_P(FastNumericsTest, ARequestResumedAnywhere) {
  for (size_t held = 1; held < 4; ++held) {
    std::vector<GenerationRequest> rest = requests_;
    for (size_t i = 0; i < rest.size(); ++i) {
      const std::vector<uint32_t>& tokens = expected_[i].token_ids;
      ASSERT_GT(tokens.size(), held);
      rest[i].token_ids.insert(rest[i].token_ids.end(), tokens.begin(),
                               tokens.begin() + static_cast<ptrdiff_t>(held));
    }
    const std::vector<GeneratedSequence> sequences =
        RunRequests(kModel, config_, rest).sequences;
    for (size_t i = 0; i < rest.size(); ++i) {
      const auto behind = [held](const std::vector<uint32_t>& values) {
        return std::vector<uint32_t>(
            values.begin() + static_cast<ptrdiff_t>(held), values.end());
      };
      EXPECT_EQ(sequences[i].token_ids, behind(expected_[i].token_ids));
      EXPECT_EQ(sequences[i].logprob_bits, behind(expected_[i].logprob_bits));
    }
  }
}

// Else the tests above would show nothing new.
TEST_P(FastNumericsTest, OtherBitsThanExact) {
  config_.numerics = Numerics::kExact;
  EXPECT_NE(Digest(RunRequests(kModel, config_, requests_).sequences),
            Digest(expected_));
}

constexpr Kind kKinds[] = {
    {"F32Cache", Numerics::kFast, CacheDtype::kF32},
    {"Bf16Cache", Numerics::kFast, CacheDtype::kBf16},
    {"Bf16DotsAndCache", Numerics::kFastBf16, CacheDtype::kBf16},
};
INSTANTIATE_TEST_SUITE_P(Kinds, FastNumericsTest, testing::ValuesIn(kKinds),
                         [](const auto& test) {
                           return std::string(test.param.name);
                         });

}  // namespace
}  // namespace baton
