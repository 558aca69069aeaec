// The engine's thread does not use the heap while sequences just decode.
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <new>

#include "base/clock.h"
#include "base/logging.h"
#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_model_runner.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/heap_kv_pool.h"

namespace {
uint64_t num_allocations = 0;  // One thread.
}  // namespace

// Not inlined: g++ would take free() for a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++num_allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
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

TEST(LLMEngineAllocationTest, DecodingDoesNotAllocate) {
  // Prompts of 100 tokens fill no block and outgrow no vector in this window.
  constexpr size_t kFrom = 35, kTo = 85;
  const EngineOptions options;
  FakeModelRunner model({});
  HeapKvPool pool(32, model.info().cache.block_bytes());
  model.BindKvPool(pool.get());
  CpuDeviceStream stream;
  MonotonicClock clock;
  CpuStepExecutor executor(
      options, {.model = &model, .stream = &stream, .clock = &clock});
  LLMEngine engine(
      options, {.executor = &executor, .pool = pool.get(), .clock = &clock});
  CountingSink sinks[8];
  for (uint64_t i = 0; i < std::size(sinks); ++i) {
    CHECK_OK(engine.Submit(MakeRequest(i, 100, 100), &sinks[i]));
  }
  uint64_t in_window = 0;
  while (!engine.idle()) {
    const uint64_t before = num_allocations;
    const size_t tokens = sinks[0].num_tokens;
    engine.Advance();
    if (tokens >= kFrom && tokens < kTo) in_window += num_allocations - before;
    stream.Poll();
  }
  EXPECT_EQ(sinks[7].num_tokens, 100u);
  EXPECT_GT(num_allocations, 0u);
  EXPECT_EQ(in_window, 0u);
}

}  // namespace
}  // namespace baton
