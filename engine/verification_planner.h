// How many drafts of each sequence a decode step verifies.
//
// A verified draft costs a row and gives a token if it survives: if it and all
// drafts before it are right. The planner takes the rows that maximise expected
// tokens over time, (n + sum of survival) / time(rows), n sequences having one
// row each; drafts go in order of falling survival, so those of one sequence
// form a prefix. (Budget as in DeepInfer's confidence scheduling. Because a
// draft is accepted only when it equals the target's own draw, the choice moves
// speed, never text, and may use the newest confidences.)
//
// time(rows) = curve(rows) * ratio(bucket of rows), four buckets for each
// doubling of rows. A bucket is seen when kMinSamples steps fell into it, the
// last within kMemorySteps; its ratio is the median of the last kMaxSamples
// measured times, each over the curve's time for the step's own rows (running
// medians over a window as DeepInfer's, which however fits one slope to all).
// An unseen bucket of m rows is given the least time that it can have, the
// greatest of these bounds by the nearest seen bucket on either side, of r rows
// and time T:
//   T, for m > r             more rows are never faster;
//   T * m / r, for m < r     fewer rows never take more time a row;
//   T / 2 * curve(m) / curve(r)   the curve's shape is trusted to a factor.
// This is optimism under uncertainty, as in UCB: a bucket wrongly favoured is
// tried, and then it is seen; one wrongly shunned would never be measured. So a
// curve that is wrong is put right by the planner's own choices, for at most
// kMinSamples steps a bucket, and a bad time that was passing is tried again
// when it has been forgotten. Contexts are not told apart: as they grow, the
// medians follow.
//
// A confidence is corrected by the ratio of observed to expected acceptances of
// its draft index, (accepted + p) / (sum of confidence + p), p = kPriorDrafts,
// both sums decaying by 1 - 1 / kMemorySteps a step, so a low ratio is
// forgotten too; where confidences are unknown (1), it is the acceptance rate.
//
// Owned by the engine: single-threaded, no clock, and after construction no
// allocation.
#ifndef BATON_ENGINE_VERIFICATION_PLANNER_H_
#define BATON_ENGINE_VERIFICATION_PLANNER_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "engine/engine_options.h"
#include "engine/step_curve.h"

namespace baton {

// One sequence's chance that each of its drafts is right, given that those
// before it are; 1 where unknown. What is not a number counts as 0.
struct DraftRates {
  uint32_t num_drafts = 0;
  std::array<float, kMaxDraftTokens> confidence = {};
};

class VerificationPlanner final {
 public:
  static constexpr uint32_t kMaxSamples = 15;
  static constexpr uint32_t kMinSamples = 5;
  static constexpr uint32_t kMemorySteps = 4096;
  static constexpr double kPriorDrafts = 16;

  // Times between points are interpolated linearly, before the first they are
  // the first's, beyond the last extrapolated, never falling. Empty: every
  // draft is verified. REQUIRES: `curve` strictly ascending in rows.
  VerificationPlanner(const std::vector<StepCurvePoint>& curve,
                      uint32_t max_sequences);

  // verify[i] <- how many of sequence i's drafts are worth their time; rows,
  // one for each sequence and its verified drafts, stay within `max_rows`. Of
  // equal values the fewest rows; of equal drafts the lower sequence's, then
  // the lower draft. REQUIRES: as many `verify` as `rates`, at most
  // max_sequences.
  void Choose(std::span<const DraftRates> rates, uint32_t max_rows,
              std::span<uint32_t> verify);

  // What a decode step took on the device, its drafts included; to be called
  // once for each, for it is also what memory is counted in. A time that is not
  // positive and finite corrects nothing.
  void Observe(uint32_t rows, absl::Duration time);

  // How the verification of a draft went. REQUIRES: the sequence's drafts
  // before it were accepted; `confidence` as in DraftRates.
  void ObserveAcceptance(uint32_t draft_index, float confidence, bool accepted);

  // What the planner thinks now; without a curve, zero.
  absl::Duration PredictedTime(uint32_t rows) const;
  float CalibratedConfidence(uint32_t draft_index, float confidence) const;

 private:
  struct Point {
    uint32_t rows;
    double seconds;
  };
  // Steps of [first_rows, the next bucket's first_rows) rows.
  struct Bucket {
    uint32_t first_rows = 0;
    double curve_seconds = 0;  // At first_rows.
    double ratio = 1;
    bool seen = false;
    std::array<double, kMaxSamples> samples = {};  // A ring.
    uint64_t num_samples = 0;                      // Since last forgotten.
    uint64_t newest_step = 0;
  };
  struct Acceptance {
    double expected = 0;
    double accepted = 0;
  };
  struct Draft {
    uint32_t key;  // Ascending while survival falls.
    uint32_t sequence;
  };

  double CurveSeconds(uint32_t rows, size_t* segment) const;
  double Seconds(uint32_t rows, size_t* segment) const;
  size_t BucketOf(uint32_t rows) const;
  void AddSample(uint32_t rows, double seconds);
  void UpdateRatios();
  double LeastRatio(const Bucket& unseen, const Bucket& seen) const;
  float AcceptanceRatio(uint32_t draft_index) const;
  void ListDrafts(std::span<const DraftRates> rates);
  void SortDrafts();
  size_t CountWorthwhile(uint32_t num_sequences, size_t limit) const;

  const uint32_t max_sequences_;
  std::vector<Point> curve_;  // Constant.
  std::vector<Bucket> buckets_;
  std::array<Acceptance, kMaxDraftTokens> acceptances_ = {};
  uint64_t num_steps_ = 0;
  // Choose's own: the drafts in order, and the other side of a sort pass.
  std::vector<Draft> drafts_;
  std::vector<Draft> scratch_;
};

}  // namespace baton

#endif  // BATON_ENGINE_VERIFICATION_PLANNER_H_
