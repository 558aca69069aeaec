#include "server/decode_curve.h"

#include <cstdint>
#include <numeric>

#include "kernels/matrix_view.h"

namespace baton {

std::vector<StepCurvePoint> MeasureDecodeCurve(ModelRunner* model,
                                               const EngineOptions& options,
                                               const Clock& clock) {
  const uint32_t max_rows = options.max_logits_rows();
  std::vector<uint32_t> points;
  for (uint32_t rows = 1; rows < max_rows; rows *= 2) points.push_back(rows);
  points.push_back(max_rows);

  // Each row a sequence of one token, all in one slot: nobody reads it.
  const uint32_t block = 0;
  const std::vector<uint32_t> token_ids(max_rows, 0);
  const std::vector<int32_t> positions(max_rows, 0);
  std::vector<SequenceRows> sequences;
  for (uint32_t i = 0; i < max_rows; ++i) {
    sequences.push_back({static_cast<int32_t>(i), 1, &block});
  }
  std::vector<int32_t> logits_rows(max_rows);
  std::iota(logits_rows.begin(), logits_rows.end(), 0);
  const int vocab = static_cast<int>(model->info().vocab_size);
  const int width = static_cast<int>(model->info().hidden_size);
  std::vector<float> logits(size_t{max_rows} * model->info().vocab_size);
  std::vector<float> hidden(size_t{max_rows} * model->info().hidden_size);

  return MeasureStepCurve(points, [&](uint32_t rows) {
    const absl::Time start = clock.Now();
    const int count = static_cast<int>(rows);
    model->Forward({.token_ids = std::span(token_ids).first(rows),
                    .positions = std::span(positions).first(rows),
                    .sequences = std::span(sequences).first(rows),
                    .logits_rows = std::span(logits_rows).first(rows)},
                   {.logits = Dense(logits.data(), count, vocab),
                    .hidden = Dense(hidden.data(), count, width)});
    return clock.Now() - start;
  });
}

}  // namespace baton
