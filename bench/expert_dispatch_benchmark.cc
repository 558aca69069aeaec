// Dispatch and combine of one layer between ranks, each on a thread, over
// shared memory and over UCX; beside a memcpy of the same bytes by as many
// threads; and the barrier alone. Experts compute nothing.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/logging.h"
#include "comm/group_barrier.h"
#include "comm/shared_expert_dispatch.h"
#include "comm/slot_table.h"
#include "comm/ucx_expert_exchange.h"

namespace baton {
namespace {

constexpr int kTopK = 8;
constexpr int kMaxProcesses = 4;  // Of a group over UCX.

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

// Of the benchmark that runs: made before its threads start, gone behind them.
std::unique_ptr<SharedExpertExchange> shared_exchange;
std::vector<std::unique_ptr<UcxExpertExchange>> ucx_exchanges;  // Each process.

std::unique_ptr<ExpertDispatch> MakeDispatch(int rank, int num_ranks) {
  if (shared_exchange != nullptr) return shared_exchange->MakeDispatch(rank);
  const int processes = static_cast<int>(ucx_exchanges.size());
  return ucx_exchanges[rank * processes / num_ranks]->MakeDispatch(rank);
}

void MakeSharedExchange(const benchmark::State& state) {
  auto made = SharedExpertExchange::Create(OptionsOf(state));
  CHECK_OK(made.status());
  shared_exchange = *std::move(made);
}

// What each process has of the group, all of them here, over loopback.
void MakeUcxExchanges(const benchmark::State& state) {
  const int processes = std::min(kMaxProcesses, state.threads());
  const int ranks = state.threads() / processes;
  UcxExpertExchangeOptions options;
  options.shape = OptionsOf(state).shape;
  for (int p = 0; p < processes; ++p) {
    options.processes.push_back({p * ranks, (p + 1) * ranks});
  }
  std::vector<std::string> addresses;
  for (options.process = 0; options.process < processes; ++options.process) {
    auto made = UcxExpertExchange::Create(options);
    CHECK_OK(made.status());
    addresses.push_back((*made)->address());
    ucx_exchanges.push_back(*std::move(made));
  }
  for (const auto& exchange : ucx_exchanges) {
    CHECK_OK(exchange->Connect(/*epoch=*/1, addresses));
  }
}

void EndExchange(const benchmark::State&) {
  shared_exchange.reset();
  ucx_exchanges.clear();
}

void BM_DispatchAndCombine(benchmark::State& state) {
  const auto tokens = static_cast<int>(state.range(0));
  const auto hidden = static_cast<int>(state.range(1));
  const auto num_experts = static_cast<int>(state.range(2));
  const std::unique_ptr<ExpertDispatch> dispatch =
      MakeDispatch(state.thread_index(), state.threads());
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
  benchmark->Threads(2)->Threads(8)->UseRealTime()->MeasureProcessCPUTime();
}
BENCHMARK(BM_Memcpy)->Apply(Shapes);
BENCHMARK(BM_DispatchAndCombine)
    ->Name("BM_DispatchAndCombine/shared_memory")
    ->Apply(Shapes)
    ->Setup(MakeSharedExchange)
    ->Teardown(EndExchange);
BENCHMARK(BM_DispatchAndCombine)
    ->Name("BM_DispatchAndCombine/ucx")
    ->Apply(Shapes)
    ->Setup(MakeUcxExchanges)
    ->Teardown(EndExchange);

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
