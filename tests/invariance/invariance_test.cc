// The same requests, computed in every way that Baton has: equal bit for bit.
#include <array>
#include <cstdint>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/invariance/token_machine.h"

namespace baton {
namespace {

constexpr char kModel[] = "models/tiny-deepseek-v3";
constexpr uint32_t kVocabSize = 4096;

const std::vector<GenerationRequest>& Requests() {
  static const auto* const kRequests =
      new std::vector<GenerationRequest>(MixedRequests(32, kVocabSize));
  return *kRequests;
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
      ->emplace(cache, RunRequests(kModel, BaseConfig(cache), Requests()))
      .first->second;
}

uint32_t NumTokens(const MachineResult& result) {
  uint32_t total = 0;
  for (const GeneratedSequence& sequence : result.sequences) {
    total += static_cast<uint32_t>(sequence.token_ids.size());
  }
  return total;
}

void ExpectSameAsBase(const MachineConfig& config) {
  const MachineResult result = RunRequests(kModel, config, Requests());
  const MachineResult& base = BaseResult(config.cache);
  for (size_t i = 0; i < base.sequences.size(); ++i) {
    EXPECT_EQ(result.sequences[i].token_ids, base.sequences[i].token_ids)
        << config.ToString() << ", request " << i;
    EXPECT_EQ(result.sequences[i].logprob_bits, base.sequences[i].logprob_bits)
        << config.ToString() << ", request " << i;
  }
  std::cout << config.ToString() << ": " << NumTokens(result)
            << " tokens, preempted before " << result.num_preempted_indices
            << " of them\n";
  if (config.preempt_before_every_token) {
    // A prompt that fits one step has no moment before its first token at which
    // it holds anything; every later index must have been hit.
    EXPECT_GE(result.num_preempted_indices,
              NumTokens(base) - base.sequences.size());
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

constexpr size_t kNumAxes = 7;
using Row = std::array<int, kNumAxes>;
using Pair = std::array<int, 4>;  // axis, setting, later axis, setting

Row AxisSizes() {
  return {3, 5, 3, 2, static_cast<int>(SupportedVectorIsas().size()), 2, 2};
}

MachineConfig ConfigOf(const Row& row) {
  constexpr std::array kSplits = {PoolSplit::kUnified, PoolSplit::kSharedMemory,
                                  PoolSplit::kTcp};
  constexpr std::array<uint32_t, 5> kChunks = {1, 7, 64, 65, 512};
  constexpr std::array<uint32_t, 3> kBatches = {1, 8, 32};
  return {.split = kSplits[row[0]],
          .max_chunk_tokens = kChunks[row[1]],
          .max_running_requests = kBatches[row[2]],
          .preempt_before_every_token = row[3] == 1,
          .isa = SupportedVectorIsas()[row[4]],
          .threads = row[5] + 1,
          .cache = row[6] == 0 ? CacheDtype::kF32 : CacheDtype::kBf16};
}

std::vector<Row> AllRows() {
  std::vector<Row> rows = {Row{}};
  for (size_t axis = 0; axis < kNumAxes; ++axis) {
    std::vector<Row> longer;
    for (const Row& row : rows) {
      for (int setting = 0; setting < AxisSizes()[axis]; ++setting) {
        longer.push_back(row);
        longer.back()[axis] = setting;
      }
    }
    rows = std::move(longer);
  }
  return rows;
}

std::set<Pair> PairsOf(const Row& row) {
  std::set<Pair> pairs;
  for (int a = 0; a < static_cast<int>(kNumAxes); ++a) {
    for (int b = a + 1; b < static_cast<int>(kNumAxes); ++b) {
      pairs.insert({a, row[a], b, row[b]});
    }
  }
  return pairs;
}

// Greedy: the row that covers most of what is uncovered, until nothing is.
std::vector<Row> PairwiseRows() {
  const std::vector<Row> all = AllRows();
  std::set<Pair> uncovered;
  for (const Row& row : all) uncovered.merge(PairsOf(row));
  std::vector<Row> chosen;
  while (!uncovered.empty()) {
    const Row* best = nullptr;
    size_t best_count = 0;
    for (const Row& row : all) {
      size_t count = 0;
      for (const Pair& pair : PairsOf(row)) count += uncovered.count(pair);
      if (count > best_count) {
        best_count = count;
        best = &row;
      }
    }
    for (const Pair& pair : PairsOf(*best)) uncovered.erase(pair);
    chosen.push_back(*best);
  }
  return chosen;
}

TEST(InvariancePairsTest, EveryPairOfSettings) {
  const std::vector<Row> rows = PairwiseRows();
  std::cout << rows.size() << " configurations cover every pair of settings\n";
  for (const Row& row : rows) ExpectSameAsBase(ConfigOf(row));
}

}  // namespace
}  // namespace baton
