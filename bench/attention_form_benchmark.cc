// The two forms of attention over a chunk of a prompt, from queries to each
// head's result, on one thread: of the demo model (6 heads, latent 64) and of
// four heads of DeepSeek-V3 (latent 512). Weights and cache are bf16.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/cpu_context.h"
#include "kernels/expanded_attention.h"
#include "kernels/latent_attention.h"
#include "kernels/linear.h"
#include "kernels/reference/random_values.h"

namespace baton {
namespace {

struct Shape {
  int heads, latent, nope, rope, v;
};
constexpr Shape kDemo = {6, 64, 32, 16, 32};
constexpr Shape kFourHeadsOfV3 = {4, 512, 128, 64, 128};

// Bf16 between 2^-6 and 2^-5, of either sign.
std::vector<uint16_t> SmallBf16(size_t size) {
  RandomValues random(size);
  std::vector<uint16_t> bits(size);
  for (uint16_t& b : bits) {
    b = static_cast<uint16_t>(0x3c80 | (random.Next() & 0x807f));
  }
  return bits;
}

PackedWeight Weight(int out, int in) {
  return PackedWeight::FromBf16(
      SmallBf16(static_cast<size_t>(out) * static_cast<size_t>(in)).data(), out,
      in, in);
}

// The last `rows` rows of a sequence of `keys` tokens.
class Chunk {
 public:
  Chunk(const Shape& shape, int rows, int keys)
      : s_(shape), rows_(rows), blocks_((keys + 63) / 64) {
    const size_t row_values = static_cast<size_t>(s_.latent + s_.rope);
    pool_ = SmallBf16(static_cast<size_t>(blocks_) * 64 * row_values);
    cache_ = {.pool = reinterpret_cast<std::byte*>(pool_.data()),
              .block_bytes = 64 * row_values * sizeof(uint16_t),
              .layer_offset_bytes = 0,
              .latent_dim = s_.latent,
              .rope_dim = s_.rope,
              .dtype = CacheDtype::kBf16};
    ids_.resize(static_cast<size_t>(blocks_));
    std::iota(ids_.begin(), ids_.end(), 0u);
    tables_.assign(static_cast<size_t>(rows), ids_.data());
    positions_.resize(static_cast<size_t>(rows));
    std::iota(positions_.begin(), positions_.end(), keys - rows);
    for (int h = 0; h < s_.heads; ++h) {
      key_absorb_.push_back(Weight(s_.latent, s_.nope));
      key_up_.push_back(Weight(s_.nope, s_.latent));
      value_up_.push_back(Weight(s_.v, s_.latent));
    }
    const size_t pairs = static_cast<size_t>(rows * s_.heads);
    query_ =
        RandomValues(2).Normals(pairs * static_cast<size_t>(s_.nope + s_.rope));
    q_latent_.resize(pairs * static_cast<size_t>(s_.latent));
    z_.resize(q_latent_.size());
    heads_.resize(pairs * static_cast<size_t>(s_.v));
  }

  void Absorbed() {
    const int pairs = rows_ * s_.heads;
    Project(query_.data(), s_.nope + s_.rope, key_absorb_, q_latent_.data());
    LatentAttention(
        context_,
        {.rows = {positions_, tables_},
         .num_heads = s_.heads,
         .scale = 0.1f,
         .q_latent = Dense<const float>(q_latent_.data(), pairs, s_.latent),
         .q_rope = rope(),
         .z = Dense(z_.data(), pairs, s_.latent)},
        cache_);
    Project(z_.data(), s_.latent, value_up_, heads_.data());
  }

  void Expanded() {
    const int pairs = rows_ * s_.heads;
    ExpandedAttention(
        context_,
        {.rows = {positions_, tables_},
         .num_heads = s_.heads,
         .scale = 0.1f,
         .q_nope = {query_.data(), pairs, s_.nope, s_.nope + s_.rope},
         .q_rope = rope(),
         .key_up = key_up_,
         .value_up = value_up_,
         .output = Dense(heads_.data(), pairs, s_.v)},
        cache_);
  }

 private:
  MatrixView<const float> rope() const {
    return {query_.data() + s_.nope, rows_ * s_.heads, s_.rope,
            s_.nope + s_.rope};
  }

  // Each head's part of x, `pitch` apart, by that head's weight.
  void Project(const float* x, int pitch,
               const std::vector<PackedWeight>& weights, float* y) {
    tasks_.clear();
    for (int h = 0; h < s_.heads; ++h) {
      const PackedWeight& weight = weights[static_cast<size_t>(h)];
      tasks_.push_back(
          {{x + h * pitch, rows_, weight.in(), ptrdiff_t{pitch} * s_.heads},
           &weight,
           {y + h * weight.out(), rows_, weight.out(),
            ptrdiff_t{weight.out()} * s_.heads}});
    }
    LinearBatch(context_, tasks_);
  }

  const Shape s_;
  const int rows_;
  const int blocks_;
  const CpuContext context_ = {.isa = SupportedVectorIsas().back()};
  std::vector<uint16_t> pool_;
  LatentCache cache_;
  std::vector<uint32_t> ids_;
  std::vector<const uint32_t*> tables_;
  std::vector<int32_t> positions_;
  std::vector<PackedWeight> key_absorb_, key_up_, value_up_;
  std::vector<float> query_, q_latent_, z_, heads_;
  std::vector<LinearTask> tasks_;
};

void BM_Absorbed(benchmark::State& state, const Shape& shape) {
  Chunk chunk(shape, static_cast<int>(state.range(0)),
              static_cast<int>(state.range(1)));
  for (auto _ : state) {
    chunk.Absorbed();
    benchmark::ClobberMemory();
  }
}

void BM_Expanded(benchmark::State& state, const Shape& shape) {
  Chunk chunk(shape, static_cast<int>(state.range(0)),
              static_cast<int>(state.range(1)));
  for (auto _ : state) {
    chunk.Expanded();
    benchmark::ClobberMemory();
  }
}

void Chunks(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"rows", "keys"})
      ->Args({1, 2048})
      ->Args({64, 64})
      ->Args({64, 2048})
      ->Args({512, 512})
      ->Args({512, 4096});
}
BENCHMARK_CAPTURE(BM_Absorbed, demo, kDemo)->Apply(Chunks);
BENCHMARK_CAPTURE(BM_Expanded, demo, kDemo)->Apply(Chunks);
BENCHMARK_CAPTURE(BM_Absorbed, v3, kFourHeadsOfV3)->Apply(Chunks);
BENCHMARK_CAPTURE(BM_Expanded, v3, kFourHeadsOfV3)->Apply(Chunks);

}  // namespace
}  // namespace baton

BENCHMARK_MAIN();
