// Kernels by themselves, on one thread, at the demo model's shapes and the
// widest vectors of this CPU: hidden 192, 6 heads, latent 64 + 16, experts of
// 32, 4096 tokens.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/cpu_context.h"
#include "kernels/latent_attention.h"
#include "kernels/linear.h"
#include "kernels/reference/random_values.h"
#include "kernels/route_experts.h"
#include "kernels/sample.h"

namespace baton {
namespace {

CpuContext Widest() {
  return {.isa = SupportedVectorIsas().back(), .threads = nullptr};
}

PackedWeight RandomWeight(int out, int in, WeightDtype dtype) {
  RandomValues random(1);
  const size_t size = static_cast<size_t>(out) * static_cast<size_t>(in);
  if (dtype == WeightDtype::kF32) {
    return PackedWeight::FromF32(random.Normals(size).data(), out, in, in);
  }
  // Bf16 of about 1, of either sign.
  std::vector<uint16_t> bits(size);
  for (uint16_t& b : bits) {
    b = static_cast<uint16_t>(0x3f80 | (random.Next() & 0x807f));
  }
  return PackedWeight::FromBf16(bits.data(), out, in, in);
}

// Arguments: out, in, rows, bf16 (2: bf16 dots).
void BM_Linear(benchmark::State& state) {
  const int out = static_cast<int>(state.range(0));
  const int in = static_cast<int>(state.range(1));
  const int rows = static_cast<int>(state.range(2));
  const PackedWeight weight = RandomWeight(
      out, in, state.range(3) != 0 ? WeightDtype::kBf16 : WeightDtype::kF32);
  const std::vector<float> x =
      RandomValues(2).Normals(static_cast<size_t>(rows * in));
  std::vector<float> y(static_cast<size_t>(rows * out));
  CpuContext context = Widest();
  if (state.range(3) == 2) context.bf16_dots = Bf16Dots::kOn;
  for (auto _ : state) {
    Linear(context, {Dense<const float>(x.data(), rows, in), &weight,
                     Dense(y.data(), rows, out)});
    benchmark::ClobberMemory();
  }
  state.counters["FLOP/s"] = benchmark::Counter(
      2.0 * rows * out * in, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Linear)
    ->ArgNames({"out", "in", "rows", "bf16"})
    ->ArgsProduct({{176, 4096}, {192}, {1, 8, 32, 256}, {0, 1, 2}})
    ->ArgsProduct({{192}, {512}, {1, 8, 32}, {0, 1, 2}})
    ->ArgsProduct({{2048}, {2048}, {1, 8, 256}, {0, 1, 2}});

// The gate and up projections of all 64 experts of a layer, so many rows each.
void BM_Experts(benchmark::State& state) {
  const int rows = static_cast<int>(state.range(0));
  std::vector<PackedWeight> weights;
  weights.reserve(64);
  for (int e = 0; e < 64; ++e) {
    weights.push_back(RandomWeight(
        64, 192, state.range(1) != 0 ? WeightDtype::kBf16 : WeightDtype::kF32));
  }
  const std::vector<float> x =
      RandomValues(2).Normals(static_cast<size_t>(rows * 192));
  std::vector<float> y(static_cast<size_t>(64 * rows * 64));
  std::vector<LinearTask> tasks;
  tasks.reserve(64);
  for (int e = 0; e < 64; ++e) {
    tasks.push_back({Dense<const float>(x.data(), rows, 192),
                     &weights[static_cast<size_t>(e)],
                     Dense(y.data() + e * rows * 64, rows, 64)});
  }
  const CpuContext context = Widest();
  for (auto _ : state) {
    LinearBatch(context, tasks);
    benchmark::ClobberMemory();
  }
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * 64 * rows * 64 * 192,
                         benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Experts)
    ->ArgNames({"rows", "bf16"})
    ->ArgsProduct({{1, 4, 16}, {0, 1}});

// One layer's attention of so many sequences of `keys` tokens each, a row each.
void BM_Attention(benchmark::State& state) {
  constexpr int kHeads = 6;
  const int rows = static_cast<int>(state.range(0));
  const int keys = static_cast<int>(state.range(1));
  const int blocks = (keys + kKvBlockTokens - 1) / kKvBlockTokens;
  std::vector<float> pool =
      RandomValues(1).Normals(static_cast<size_t>(rows * blocks * 64 * 80));
  const LatentCache cache = {.pool = reinterpret_cast<std::byte*>(pool.data()),
                             .block_bytes = 64 * 80 * sizeof(float),
                             .layer_offset_bytes = 0,
                             .latent_dim = 64,
                             .rope_dim = 16,
                             .dtype = CacheDtype::kF32};
  std::vector<uint32_t> ids(static_cast<size_t>(rows * blocks));
  std::iota(ids.begin(), ids.end(), 0u);
  std::vector<const uint32_t*> tables(static_cast<size_t>(rows));
  for (int r = 0; r < rows; ++r) {
    tables[static_cast<size_t>(r)] = ids.data() + r * blocks;
  }
  const std::vector<int32_t> positions(static_cast<size_t>(rows), keys - 1);
  const std::vector<float> q =
      RandomValues(2).Normals(static_cast<size_t>(rows * kHeads * 64));
  std::vector<float> z(q.size());
  const CpuContext context = Widest();
  for (auto _ : state) {
    LatentAttention(
        context,
        {.rows = {positions, tables},
         .num_heads = kHeads,
         .scale = 0.187f,
         .q_latent = Dense<const float>(q.data(), rows * kHeads, 64),
         .q_rope = Dense<const float>(q.data(), rows * kHeads, 16),
         .z = Dense(z.data(), rows * kHeads, 64)},
        cache);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_Attention)
    ->ArgNames({"rows", "keys"})
    ->ArgsProduct({{1, 8, 32}, {64, 320, 1024}});

void BM_RouteExperts(benchmark::State& state) {
  const std::vector<float> logits = RandomValues(1).Normals(64);
  const std::vector<float> bias = RandomValues(2).Normals(64, 0.1f);
  std::vector<int32_t> experts(8);
  std::vector<float> weights(8);
  const RoutingOptions options = {.method = RoutingMethod::kNoAuxTc,
                                  .scoring = ScoringFunction::kSigmoid,
                                  .num_groups = 8,
                                  .num_kept_groups = 4,
                                  .top_k = 8,
                                  .normalize = true,
                                  .scaling_factor = 2,
                                  .bias = bias.data()};
  const CpuContext context = Widest();
  for (auto _ : state) {
    RouteExperts(context, options, Dense<const float>(logits.data(), 1, 64),
                 Dense(experts.data(), 1, 8), Dense(weights.data(), 1, 8));
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_RouteExperts);

// One row of so many logits, as peaked as a trained model's.
void BM_Sample(benchmark::State& state, SampleParams params) {
  const int vocab = static_cast<int>(state.range(0));
  const size_t size = static_cast<size_t>(vocab);
  const std::vector<float> logits = RandomValues(1).Normals(size, 3);
  // A context of some hundred tokens.
  std::vector<uint32_t> counts(size);
  for (size_t i = 0; i < 1024; i += 3) counts[i * 37 % size] += 1;
  params.token_counts = counts.data();
  const LogitBias bias[] = {{5, 1}, {17, -1}};
  if (params.logprobs_after_truncation) params.logit_bias = bias;
  SampledToken token;
  std::vector<SampledToken> top(kMaxTopLogprobs);
  const CpuContext context = Widest();
  for (auto _ : state) {
    ++params.position;
    Sample(context, Dense<const float>(logits.data(), 1, vocab), {&params, 1},
           {&token, 1}, top);
    benchmark::DoNotOptimize(token);
  }
}
void SampleVocabularies(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("vocab")->Arg(1024)->Arg(4096)->Arg(129280);
}
BENCHMARK_CAPTURE(BM_Sample, greedy, SampleParams{.temperature = 0})
    ->Apply(SampleVocabularies);
BENCHMARK_CAPTURE(BM_Sample, whole, SampleParams{})->Apply(SampleVocabularies);
BENCHMARK_CAPTURE(BM_Sample, top_p,
                  SampleParams{.temperature = 0.7f, .top_p = 0.95f})
    ->Apply(SampleVocabularies);
BENCHMARK_CAPTURE(BM_Sample, top_k, SampleParams{.top_k = 40})
    ->Apply(SampleVocabularies);
BENCHMARK_CAPTURE(BM_Sample, min_p, SampleParams{.min_p = 0.05f})
    ->Apply(SampleVocabularies);
BENCHMARK_CAPTURE(BM_Sample, penalties,
                  SampleParams{.repetition_penalty = 1.1f,
                               .presence_penalty = 0.5f,
                               .frequency_penalty = 0.5f})
    ->Apply(SampleVocabularies);
BENCHMARK_CAPTURE(BM_Sample, top_logprobs,
                  SampleParams{.num_top_logprobs = kMaxTopLogprobs})
    ->Apply(SampleVocabularies);
BENCHMARK_CAPTURE(BM_Sample, bias_and_top_logprobs_of_kept,
                  SampleParams{.temperature = 0.7f,
                               .top_p = 0.95f,
                               .num_top_logprobs = kMaxTopLogprobs,
                               .logprobs_after_truncation = true})
    ->Apply(SampleVocabularies);

}  // namespace
}  // namespace baton

BENCHMARK_MAIN();
