#include "kernels/sample.h"

#include <bit>
#include <vector>

#include "base/logging.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/parallel_for.h"

namespace baton {

void Sample(const CpuContext& context, MatrixView<const float> logits,
            std::span<const SampleParams> params, std::span<SampledToken> out) {
  CHECK_GE(logits.cols, 1);
  CHECK_EQ(params.size(), static_cast<size_t>(logits.rows));
  CHECK_EQ(out.size(), static_cast<size_t>(logits.rows));
  const KernelTable& kernels = KernelsFor(context.isa);
  ParallelFor(context, logits.rows, [&](int r) {
    // Kept from call to call, so that steady state allocates nothing.
    thread_local std::vector<int32_t> scratch;
    const size_t needed = SampleScratchSize(logits.cols);
    if (scratch.size() < needed) scratch.resize(needed);
    const SampleParams& p = params[static_cast<size_t>(r)];
    SampleRow row = {.logits = logits.row(r),
                     .vocab = logits.cols,
                     .temperature = p.temperature,
                     .top_p = p.top_p,
                     .min_p = p.min_p,
                     .top_k = p.top_k,
                     .seed = p.seed,
                     .sample_index = p.sample_index,
                     .position = p.position,
                     .scratch = scratch.data(),
                     .token_id = 0,
                     .logprob = 0};
    kernels.sample(row);
    out[static_cast<size_t>(r)] = {row.token_id, row.logprob};
  });
}

bool RowIsSampleable(MatrixView<const float> logits, int r) {
  const float* row = logits.row(r);
  int32_t bad = 0;
  int32_t finite = 0;
  const auto look = [&](float value) {
    const int32_t bits = std::bit_cast<int32_t>(value);
    const int32_t is_finite = (bits & 0x7fffffff) < 0x7f800000;
    const int32_t is_minus_infinity =
        bits == std::bit_cast<int32_t>(0xff800000u);
    finite |= is_finite;
    bad |= 1 ^ (is_finite | is_minus_infinity);
  };
  // Loops of a known length, for compilers to vectorise.
  constexpr int kChunk = 64;
  int i = 0;
  for (; i + kChunk <= logits.cols; i += kChunk) {
    for (int j = 0; j < kChunk; ++j) look(row[i + j]);
  }
  for (; i < logits.cols; ++i) look(row[i]);
  return bad == 0 && finite != 0;
}

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xd2511f53u} * counter[0];
    const uint64_t b = uint64_t{0xcd9e8d57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(a)};
    key[0] += 0x9e3779b9u;
    key[1] += 0xbb67ae85u;
  }
  return counter;
}

}  // namespace baton
