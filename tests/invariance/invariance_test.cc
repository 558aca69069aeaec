// The same requests, computed in every way that Baton has: equal bit for bit.
#include <array>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/invariance/covering_rows.h"
#include "tests/invariance/token_machine.h"

namespace baton {
namespace {

constexpr char kModel[] = "models/tiny-deepseek-v3";
constexpr uint32_t kVocabSize = 4096;

constexpr int kNumRequests = 32;
// In the many configurations of EveryPairOfSettings: a prompt of each length.
constexpr int kFewRequests = 8;

std::vector<GenerationRequest> Requests(int count) {
  return MixedRequests(count, kVocabSize);
}

MachineConfig BaseConfig(CacheDtype cache) {
  return {.isa = SupportedVectorIsas().back(), .cache = cache};
}

// The simplest way to compute them, once for each cache type.
const MachineResult& BaseResult(CacheDtype cache) {
  static auto* const results = new std::map<CacheDtype, MachineResult>;
  const auto found = results->find(cache);
  if (found != results->end()) return found->second;
  return results
      ->emplace(cache,
                RunRequests(kModel, BaseConfig(cache), Requests(kNumRequests)))
      .first->second;
}

// The first `count` of the requests.
void ExpectSameAsBase(const MachineConfig& config, int count = kNumRequests) {
  const MachineResult result = RunRequests(kModel, config, Requests(count));
  const MachineResult& base = BaseResult(config.cache);
  ASSERT_EQ(result.sequences.size(), static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(result.sequences[i].token_ids, base.sequences[i].token_ids)
        << config.ToString() << ", request " << i;
    EXPECT_EQ(result.sequences[i].logprob_bits, base.sequences[i].logprob_bits)
        << config.ToString() << ", request " << i;
  }
  std::cout << config.ToString() << ": " << NumTokens(result.sequences)
            << " tokens, preempted before " << result.num_preempted_indices
            << " of them\n";
  if (config.preempt_before_every_token && config.num_draft_tokens == 0) {
    // A prompt that fits one step has no moment before its first token at which
    // it holds anything; every later index must have been hit. (Drafts bring
    // several tokens at once.)
    EXPECT_GE(result.num_preempted_indices,
              NumTokens(result.sequences) - count);
  }
}

class InvarianceTest : public testing::TestWithParam<CacheDtype> {
 protected:
  MachineConfig base() const { return BaseConfig(GetParam()); }
};

TEST_P(InvarianceTest, SplitOverSharedMemory) {
  MachineConfig config = base();
  config.split = PoolSplit::kSharedMemory;
  ExpectSameAsBase(config);
}

TEST_P(InvarianceTest, SplitOverTcp) {
  MachineConfig config = base();
  config.split = PoolSplit::kTcp;
  ExpectSameAsBase(config);
}

TEST_P(InvarianceTest, ChunksOfAnySize) {
  for (const uint32_t chunk : {1, 7, 64, 65}) {
    MachineConfig config = base();
    config.max_chunk_tokens = chunk;
    ExpectSameAsBase(config);
  }
}

TEST_P(InvarianceTest, AnyBatchMix) {
  for (const uint32_t batch : {2, 3, 5, 8, 13, 32}) {
    MachineConfig config = base();
    config.max_running_requests = batch;
    ExpectSameAsBase(config);
  }
}

TEST_P(InvarianceTest, PreemptionBeforeEveryToken) {
  for (const uint32_t chunk : {7, 512}) {
    MachineConfig config = base();
    config.max_chunk_tokens = chunk;
    config.preempt_before_every_token = true;
    ExpectSameAsBase(config);
  }
}

TEST_P(InvarianceTest, EveryVectorWidth) {
  for (const VectorIsa isa : SupportedVectorIsas()) {
    MachineConfig config = base();
    config.isa = isa;
    ExpectSameAsBase(config);
  }
}

TEST_P(InvarianceTest, TwoThreads) {
  MachineConfig config = base();
  config.threads = 2;
  ExpectSameAsBase(config);
}

INSTANTIATE_TEST_SUITE_P(Cache, InvarianceTest,
                         testing::Values(CacheDtype::kF32, CacheDtype::kBf16),
                         [](const testing::TestParamInfo<CacheDtype>& param) {
                           return param.param == CacheDtype::kF32 ? "F32"
                                                                  : "Bf16";
                         });

TEST(InvarianceBaseTest, TheCacheTypeIsTheOneThingThatChangesBits) {
  EXPECT_NE(Digest(BaseResult(CacheDtype::kF32).sequences),
            Digest(BaseResult(CacheDtype::kBf16).sequences));
}

// --- a set of configurations that covers every pair of settings --------------

std::vector<int> AxisSizes() {
  return {3, 5, 3, 2, static_cast<int>(SupportedVectorIsas().size()),
          2, 2, 3, 3};
}

MachineConfig ConfigOf(const AxisRow& row) {
  constexpr std::array kSplits = {PoolSplit::kUnified, PoolSplit::kSharedMemory,
                                  PoolSplit::kTcp};
  constexpr std::array<uint32_t, 5> kChunks = {1, 7, 64, 65, 512};
  constexpr std::array<uint32_t, 3> kBatches = {1, 8, 32};
  constexpr std::array<uint32_t, 3> kDrafts = {0, 1, 5};
  return {.split = kSplits[row[0]],
          .max_chunk_tokens = kChunks[row[1]],
          .max_running_requests = kBatches[row[2]],
          .preempt_before_every_token = row[3] == 1,
          .isa = SupportedVectorIsas()[row[4]],
          .threads = row[5] + 1,
          .cache = row[6] == 0 ? CacheDtype::kF32 : CacheDtype::kBf16,
          .pipeline_depth = static_cast<uint32_t>(row[7]) + 1,
          .num_draft_tokens = kDrafts[row[8]]};
}

TEST(InvariancePairsTest, EveryPairOfSettings) {
  const std::vector<AxisRow> rows = CoveringRows(AllRows(AxisSizes()));
  std::cout << rows.size() << " configurations cover every pair of settings\n";
  for (const AxisRow& row : rows) ExpectSameAsBase(ConfigOf(row), kFewRequests);
}

}  // namespace
}  // namespace baton
