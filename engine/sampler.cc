#include "engine/sampler.h"

#include <algorithm>

namespace baton {
namespace {

// One past the last sample of the run that starts at `begin` and whose rows of
// logits follow each other.
size_t EndOfRun(std::span<const SampleRow> samples, size_t begin) {
  size_t end = begin + 1;
  while (end < samples.size() &&
         samples[end].logits_row == samples[end - 1].logits_row + 1) {
    ++end;
  }
  return end;
}

}  // namespace

void BuildSampleParams(std::span<const SampleRow> samples,
                       std::vector<SampleParams>* params) {
  params->clear();
  for (const SampleRow& sample : samples) {
    const GenerationRequest& request = sample.sequence->request;
    params->push_back({.temperature = request.sampling.temperature,
                       .top_p = request.sampling.top_p,
                       .min_p = request.sampling.min_p,
                       .top_k = request.sampling.top_k,
                       .seed = request.sampling.seed,
                       .sample_index = request.sample_index,
                       .position = sample.position});
  }
}

void DrawTokens(const CpuContext& context, MatrixView<float> logits,
                std::span<const SampleRow> samples,
                std::span<const SampleParams> params, SamplerOutput* output) {
  output->tokens.resize(samples.size());
  output->sampleable.resize(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    const int row = static_cast<int>(samples[i].logits_row);
    output->sampleable[i] = RowIsSampleable(logits, row);
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    if (output->sampleable[i]) continue;
    const int row = static_cast<int>(samples[i].logits_row);
    std::fill_n(logits.row(row), logits.cols, 0.0f);
  }
  for (size_t begin = 0, end = 0; begin < samples.size(); begin = end) {
    end = EndOfRun(samples, begin);
    MatrixView<float> rows = logits;
    rows.data = logits.row(static_cast<int>(samples[begin].logits_row));
    rows.rows = static_cast<int>(end - begin);
    Sample(context, rows, params.subspan(begin, end - begin),
           std::span(output->tokens).subspan(begin, end - begin));
  }
}

}  // namespace baton
