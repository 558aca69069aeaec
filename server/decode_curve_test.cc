#include "server/decode_curve.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

// 10 us and 1 us a row, in simulated time.
class TimedRunner final : public ModelRunner {
 public:
  explicit TimedRunner(SimulatedClock* clock) : clock_(clock) {
    info_.vocab_size = 4;
    info_.hidden_size = 2;
  }

  const ModelRunnerInfo& info() const override { return info_; }
  void BindKvPool(const KvPool*) override {}
  void Forward(const ForwardBatch& batch,
               const ForwardOutput& output) override {
    EXPECT_EQ(output.logits.rows, static_cast<int>(batch.token_ids.size()));
    EXPECT_EQ(output.hidden.rows, static_cast<int>(batch.token_ids.size()));
    clock_->Advance(absl::Microseconds(10 + batch.token_ids.size()));
  }
  void Draft(const ForwardBatch&, MatrixView<const float>,
             const ForwardOutput&) override {}

 private:
  SimulatedClock* const clock_;
  ModelRunnerInfo info_;
};

TEST(DecodeCurveTest, GoesFromOneRowToAllThatAStepMayHave) {
  SimulatedClock clock;
  TimedRunner model(&clock);
  EngineOptions options;
  options.max_running_requests = 6;
  options.num_draft_tokens = 1;
  const std::vector<StepCurvePoint> curve =
      MeasureDecodeCurve(&model, options, clock);
  ASSERT_EQ(curve.size(), 5u);
  const std::vector<uint32_t> rows = {1, 2, 4, 8, 12};
  for (size_t i = 0; i < curve.size(); ++i) {
    EXPECT_EQ(curve[i].rows, rows[i]);
    EXPECT_EQ(curve[i].time, absl::Microseconds(10 + rows[i]));
  }
}

}  // namespace
}  // namespace baton
