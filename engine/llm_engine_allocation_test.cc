// The engine's thread does not use the heap while sequences just decode, and a
// request takes little of it.
#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <new>

#include "base/clock.h"
#include "base/logging.h"
#include "comm/kv_pool.h"
#include "engine/cache_spec.h"
#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "engine/llm_engine.h"
#include "engine/sequence.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_model_runner.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/heap_kv_pool.h"

namespace {
// One thread.
uint64_t num_allocations = 0;
int64_t live_bytes = 0;
}  // namespace

// Not inlined: g++ would take free() for a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++num_allocations;
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}

namespace baton {
namespace {

struct CountingSink final : public TokenSink {
  void OnKvHandle(const KvHandle&) override {}
  void OnProgress(uint32_t) override {}
  void OnPromptLogprobs(const ScoredTokens&) override {}
  void OnTokens(const ScoredTokens& scored) override {
    num_tokens += scored.tokens.size();
  }
  void OnFinished(const GenerationOutcome&) override {}

  size_t num_tokens = 0;
};

class LLMEngineAllocationTest : public testing::Test {
 protected:
  LLMEngineAllocationTest() { model_.BindKvPool(pool_.get()); }

  const EngineOptions options_;
  FakeModelRunner model_{{}};
  HeapKvPool pool_{256, model_.info().cache.block_bytes()};
  CpuDeviceStream stream_;
  MonotonicClock clock_;
  CpuStepExecutor executor_{
      options_, {.model = &model_, .stream = &stream_, .clock = &clock_}};
  LLMEngine engine_{
      options_,
      {.executor = &executor_, .pool = pool_.get(), .clock = &clock_}};
};

TEST_F(LLMEngineAllocationTest, DecodingDoesNotAllocate) {
  // Prompts of 100 tokens fill a block and outgrow no vector in this window.
  constexpr size_t kFrom = 35, kTo = 97;
  CountingSink sinks[8];
  for (uint64_t i = 0; i < std::size(sinks); ++i) {
    CHECK_OK(engine_.Submit(MakeRequest(i, 100, 100), &sinks[i]));
  }
  uint64_t in_window = 0;
  while (!engine_.idle()) {
    const uint64_t before = num_allocations;
    const size_t tokens = sinks[0].num_tokens;
    engine_.Advance();
    if (tokens >= kFrom && tokens < kTo) in_window += num_allocations - before;
    stream_.Poll();
  }
  EXPECT_EQ(sinks[7].num_tokens, 100u);
  EXPECT_GT(num_allocations, 0u);
  EXPECT_EQ(in_window, 0u);
}

TEST_F(LLMEngineAllocationTest, ARequestTakesTwoKilobytesBesideIdsAndBlocks) {
  constexpr uint32_t kRequests = 64, kTokens = 200;
  CountingSink sinks[kRequests];
  const int64_t before = live_bytes;
  for (uint64_t i = 0; i < kRequests; ++i) {
    CHECK_OK(
        engine_.Submit(MakeRequest(i, kTokens / 2, kTokens / 2), &sinks[i]));
  }
  while (sinks[kRequests - 1].num_tokens == 0) {
    engine_.Advance();
    stream_.Poll();
  }
  ASSERT_EQ(engine_.load().running_requests, kRequests);
  const int64_t ids_and_blocks =
      kTokens * sizeof(uint32_t) +
      CacheSpec::BlocksFor(kTokens) * sizeof(BlockId);
  const int64_t bytes = (live_bytes - before) / kRequests - ids_and_blocks;
  std::cout << bytes << " bytes\n";
  EXPECT_GT(bytes, int64_t{sizeof(SequenceMetadata)});
  EXPECT_LE(bytes, 2048);
  while (!engine_.idle()) {
    engine_.Advance();
    stream_.Poll();
  }
}

}  // namespace
}  // namespace baton
