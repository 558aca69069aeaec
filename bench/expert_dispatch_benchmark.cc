// Dispatch and combine of one layer between the ranks of a host, each on a
// thread, beside a memcpy of the same bytes by as many threads; and the barrier
// alone. Experts compute nothing.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/logging.h"
#include "comm/group_barrier.h"
#include "comm/shared_expert_dispatch.h"
#include "comm/slot_table.h"

namespace baton {
namespace {

constexpr int kTopK = 8;

// Arguments of both: tokens of a rank, hidden size, experts.
ExpertExchangeOptions OptionsOf(const benchmark::State& state) {
  const auto num_experts = static_cast<int>(state.range(2));
  return {.shape = {.experts = {.num_experts = num_experts,
                                .top_k = kTopK,
                                .hidden_size = static_cast<int>(state.range(1)),
                                .max_tokens = static_cast<int>(state.range(0))},
                    .num_ranks = state.threads(),
                    .slots_per_rank = num_experts / state.threads()}};
}

size_t FloatsEachWay(const benchmark::State& state) {
  return static_cast<size_t>(state.range(0) * kTopK * state.range(1));
}

// Of all threads together: what is reported as time is divided by them.
void SetRoundTime(benchmark::State* state) {
  state->counters["round_time"] = benchmark::Counter(
      static_cast<double>(state->iterations()),
      benchmark::Counter::kIsRate | benchmark::Counter::kAvgThreads |
          benchmark::Counter::kInvert);
}

void SetBytes(benchmark::State* state) {
  SetRoundTime(state);
  const auto bytes =
      static_cast<int64_t>(2 * sizeof(float) * FloatsEachWay(*state));
  state->SetBytesProcessed(state->iterations() * bytes);
}

// Of the benchmark that runs; made before its threads start.
std::unique_ptr<SharedExpertExchange> exchange;

void MakeExchange(const benchmark::State& state) {
  exchange.reset();
  auto made = SharedExpertExchange::Create(OptionsOf(state));
  CHECK_OK(made.status());
  exchange = *std::move(made);
}

void BM_DispatchAndCombine(benchmark::State& state) {
  const auto tokens = static_cast<int>(state.range(0));
  const auto hidden = static_cast<int>(state.range(1));
  const auto num_experts = static_cast<int>(state.range(2));
  const std::unique_ptr<ExpertDispatch> dispatch =
      exchange->MakeDispatch(state.thread_index());
  const SlotTable table = SlotTable::Identity(num_experts);
  std::vector<float> x(FloatsEachWay(state) / kTopK, 1.0f);
  std::vector<float> routed(FloatsEachWay(state));
  std::mt19937 random(static_cast<uint32_t>(state.thread_index()));
  std::vector<int32_t> all(static_cast<size_t>(num_experts));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int32_t> experts;
  for (int t = 0; t < tokens; ++t) {
    std::shuffle(all.begin(), all.end(), random);
    experts.insert(experts.end(), all.begin(), all.begin() + kTopK);
  }
  const auto exchange_layer = [&] {
    const ExpertRows rows = dispatch->Dispatch(
        Dense<const float>(x.data(), tokens, hidden),
        Dense<const int32_t>(experts.data(), tokens, kTopK), table.view());
    benchmark::DoNotOptimize(rows.inputs.data);
    dispatch->Combine(Dense(routed.data(), tokens * kTopK, hidden));
    benchmark::ClobberMemory();
  };
  exchange_layer();  // Every page is there.
  for (auto _ : state) exchange_layer();
  CHECK_OK(dispatch->status());
  SetBytes(&state);
}

// The same bytes in and out, by the same number of threads, with no word
// between them.
void BM_Memcpy(benchmark::State& state) {
  const size_t size = FloatsEachWay(state);
  const std::vector<float> from(size, 1.0f);
  std::vector<float> there(size);
  std::vector<float> back(size);
  for (auto _ : state) {
    std::memcpy(there.data(), from.data(), size * sizeof(float));
    benchmark::ClobberMemory();
    std::memcpy(back.data(), there.data(), size * sizeof(float));
    benchmark::ClobberMemory();
  }
  SetBytes(&state);
}

// The demo model's decode and prefill steps, then V3's.
void Shapes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"tokens", "hidden", "experts"});
  for (const int tokens : {8, 64, 512}) benchmark->Args({tokens, 192, 64});
  benchmark->Args({64, 7168, 256});
  benchmark->Threads(2)->Threads(8)->UseRealTime();
}
BENCHMARK(BM_Memcpy)->Apply(Shapes);
BENCHMARK(BM_DispatchAndCombine)->Apply(Shapes)->Setup(MakeExchange);

struct Barrier {
  explicit Barrier(int num_members)
      : arrivals(static_cast<size_t>(num_members)),
        barrier({.spins = std::thread::hardware_concurrency() >=
                          static_cast<unsigned>(num_members)},
                &state, arrivals) {}

  GroupBarrierState state = {};
  std::vector<GroupBarrierArrivals> arrivals;
  GroupBarrier barrier;
};
std::unique_ptr<Barrier> barrier;

void MakeBarrier(const benchmark::State& state) {
  barrier = std::make_unique<Barrier>(state.threads());
}

void BM_Barrier(benchmark::State& state) {
  for (auto _ : state) {
    CHECK(barrier->barrier.Arrive(state.thread_index()));
  }
  SetRoundTime(&state);
}
BENCHMARK(BM_Barrier)
    ->Setup(MakeBarrier)
    ->Threads(2)
    ->Threads(8)
    ->Threads(64)
    ->Threads(128)
    ->UseRealTime();

}  // namespace
}  // namespace baton

BENCHMARK_MAIN();
