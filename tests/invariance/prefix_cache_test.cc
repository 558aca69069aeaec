// With a warm prefix cache a request gets what it gets with a cold one, bit for
// bit: of prompts that were computed before, and of turns that go on behind an
// answer.
#include <algorithm>
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
constexpr int kRequests = 12;

struct Kind {
  const char* name;
  Numerics numerics;
  CacheDtype cache;
};

class PrefixCacheInvarianceTest : public testing::TestWithParam<Kind> {
 protected:
  PrefixCacheInvarianceTest() {
    config_.isa = SupportedVectorIsas().back();
    config_.numerics = GetParam().numerics;
    config_.cache = GetParam().cache;
    for (GenerationRequest& request : MixedRequests(kRequests, kVocabSize)) {
      request.max_tokens += 50;  // Answers fill blocks, too.
      requests_.push_back(request);
    }
    AddTurns();
  }

  // Behind each request and its answer, and some of them once more.
  void AddTurns() {
    const std::vector<GeneratedSequence> answers =
        RunRequests(kModel, config_, requests_).sequences;
    for (size_t i = 0; i < kRequests; ++i) {
      GenerationRequest again = requests_[i];
      again.id.counter += 1000;
      GenerationRequest turn = again;
      turn.id.counter += 1000;
      turn.token_ids.insert(turn.token_ids.end(), answers[i].token_ids.begin(),
                            answers[i].token_ids.end());
      turn.token_ids.push_back(static_cast<uint32_t>(i));
      turn.original_prompt_tokens =
          static_cast<uint32_t>(turn.token_ids.size());
      turn.prompt_logprobs_from.reset();
      if (i % 2 == 0) requests_.push_back(again);
      requests_.push_back(turn);
    }
    expected_ = RunRequests(kModel, config_, requests_);
  }

  MachineResult ExpectSame() {
    config_.prefix_cache = true;
    MachineResult result = RunRequests(kModel, config_, requests_);
    for (size_t i = 0; i < requests_.size(); ++i) {
      EXPECT_TRUE(result.sequences[i] == expected_.sequences[i])
          << config_.ToString() << ", request " << i;
    }
    for (const uint64_t tokens : result.hit_tokens) {
      EXPECT_GT(tokens, 200u) << config_.ToString();
    }
    return result;
  }

  MachineConfig config_;
  std::vector<GenerationRequest> requests_;
  MachineResult expected_;
};

TEST_P(PrefixCacheInvarianceTest, OneAfterTheOther) { ExpectSame(); }

TEST_P(PrefixCacheInvarianceTest, DraftsToo) {
  config_.num_draft_tokens = 3;
  const MachineResult cold = RunRequests(kModel, config_, requests_);
  const MachineResult warm = ExpectSame();
  // One that differed would be accepted elsewhere.
  EXPECT_EQ(warm.drafts_verified, cold.drafts_verified);
  EXPECT_EQ(warm.drafts_accepted, cold.drafts_accepted);
  EXPECT_GT(warm.drafts_accepted[0], 0u);
}

TEST_P(PrefixCacheInvarianceTest, OverTwoPools) {
  config_.num_draft_tokens = 2;
  for (const PoolSplit split : {PoolSplit::kSharedMemory, PoolSplit::kTcp}) {
    config_.split = split;
    ExpectSame();
  }
}

TEST_P(PrefixCacheInvarianceTest, InBatchesAheadOfTheDeviceAndPreempted) {
  config_.max_running_requests = 4;
  config_.max_chunk_tokens = 48;
  config_.pipeline_depth = 3;
  config_.device_thread = true;
  config_.num_draft_tokens = 3;
  ExpectSame();
  config_.preempt_before_every_token = true;
  ExpectSame();
}

TEST_P(PrefixCacheInvarianceTest, WhereThePoolIsTooSmallForAll) {
  config_.max_running_requests = 4;
  config_.pipeline_depth = 2;
  config_.num_draft_tokens = 2;
  config_.pool_blocks = 12;
  ExpectSame();
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, PrefixCacheInvarianceTest,
    testing::Values(Kind{"Exact", Numerics::kExact, CacheDtype::kF32},
                    Kind{"ExactBf16Cache", Numerics::kExact, CacheDtype::kBf16},
                    Kind{"FastBf16Cache", Numerics::kFast, CacheDtype::kBf16}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace baton
