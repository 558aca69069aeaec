#include "engine/verification_planner.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/logging.h"

namespace baton {
namespace {

// Keeps ratios of times finite, whatever the clock says.
constexpr double kMinSeconds = 1e-9;
constexpr double kMaxSeconds = 3600;

double BoundedSeconds(absl::Duration time) {
  return std::clamp(absl::ToDoubleSeconds(time), kMinSeconds, kMaxSeconds);
}

// Into [0, 1]; NaN and -0 become 0.
float Probability(float confidence) {
  return confidence > 0 ? std::min(confidence, 1.0f) : 0.0f;
}

// Four buckets for each doubling, one for each of the first rows.
uint32_t UnboundedBucket(uint32_t rows) {
  if (rows < 4) return rows;
  const auto width = static_cast<uint32_t>(std::bit_width(rows));
  return (width - 2) * 4 + (rows >> (width - 3) & 3);
}

// Bits of floats >= 0 are ordered as the floats are.
constexpr uint32_t kOneBits = std::bit_cast<uint32_t>(1.0f);

}  // namespace

VerificationPlanner::VerificationPlanner(
    const std::vector<StepCurvePoint>& curve, uint32_t max_sequences)
    : max_sequences_(max_sequences) {
  for (const StepCurvePoint& point : curve) {
    if (!curve_.empty()) CHECK_GT(point.rows, curve_.back().rows);
    curve_.push_back({point.rows, BoundedSeconds(point.time)});
  }
  size_t segment = 0;
  const uint32_t max_rows = max_sequences * (1 + kMaxDraftTokens);
  for (uint32_t rows = 0; rows <= max_rows && !curve_.empty(); ++rows) {
    if (UnboundedBucket(rows) < buckets_.size()) continue;
    buckets_.push_back(
        {.first_rows = rows, .curve_seconds = CurveSeconds(rows, &segment)});
  }
  drafts_.reserve(max_sequences * kMaxDraftTokens);
  scratch_.reserve(max_sequences * kMaxDraftTokens);
}

void VerificationPlanner::Choose(std::span<const DraftRates> rates,
                                 uint32_t max_rows,
                                 std::span<uint32_t> verify) {
  CHECK_LE(rates.size(), max_sequences_);
  CHECK_EQ(rates.size(), verify.size());
  std::fill(verify.begin(), verify.end(), 0u);
  const auto num_sequences = static_cast<uint32_t>(rates.size());
  if (max_rows <= num_sequences) return;
  ListDrafts(rates);
  SortDrafts();
  const size_t limit =
      std::min<size_t>(drafts_.size(), max_rows - num_sequences);
  const size_t num = CountWorthwhile(num_sequences, limit);
  // The sort is stable and survival falls within a sequence: prefixes win.
  for (size_t i = 0; i < num; ++i) ++verify[drafts_[i].sequence];
}

void VerificationPlanner::Observe(uint32_t rows, absl::Duration time) {
  ++num_steps_;
  for (Acceptance& acceptance : acceptances_) {
    acceptance.expected *= 1 - 1.0 / kMemorySteps;
    acceptance.accepted *= 1 - 1.0 / kMemorySteps;
  }
  if (curve_.empty()) return;
  if (time > absl::ZeroDuration() && time < absl::InfiniteDuration()) {
    AddSample(rows, BoundedSeconds(time));
  }
  UpdateRatios();
}

void VerificationPlanner::ObserveAcceptance(uint32_t draft_index,
                                            float confidence, bool accepted) {
  CHECK_LT(draft_index, kMaxDraftTokens);
  Acceptance& acceptance = acceptances_[draft_index];
  acceptance.expected += Probability(confidence);
  acceptance.accepted += accepted ? 1 : 0;
}

absl::Duration VerificationPlanner::PredictedTime(uint32_t rows) const {
  if (curve_.empty()) return absl::ZeroDuration();
  size_t segment = 0;
  return absl::Seconds(Seconds(rows, &segment));
}

float VerificationPlanner::CalibratedConfidence(uint32_t draft_index,
                                                float confidence) const {
  CHECK_LT(draft_index, kMaxDraftTokens);
  return Probability(Probability(confidence) * AcceptanceRatio(draft_index));
}

float VerificationPlanner::AcceptanceRatio(uint32_t draft_index) const {
  const Acceptance& acceptance = acceptances_[draft_index];
  return static_cast<float>((acceptance.accepted + kPriorDrafts) /
                            (acceptance.expected + kPriorDrafts));
}

// `*segment`, 0 at first, moves up with rows; so many rows in ascending order
// cost one pass over the curve. REQUIRES: a curve that is not empty.
double VerificationPlanner::CurveSeconds(uint32_t rows, size_t* segment) const {
  if (curve_.size() == 1 || rows <= curve_.front().rows) {
    return curve_.front().seconds;
  }
  while (*segment + 2 < curve_.size() && curve_[*segment + 1].rows < rows) {
    ++*segment;
  }
  const Point& from = curve_[*segment];
  const Point& to = curve_[*segment + 1];
  const double slope = (to.seconds - from.seconds) / (to.rows - from.rows);
  if (rows <= to.rows) return from.seconds + slope * (rows - from.rows);
  return to.seconds + std::max(slope, 0.0) * (rows - to.rows);
}

double VerificationPlanner::Seconds(uint32_t rows, size_t* segment) const {
  return CurveSeconds(rows, segment) * buckets_[BucketOf(rows)].ratio;
}

size_t VerificationPlanner::BucketOf(uint32_t rows) const {
  return std::min<size_t>(UnboundedBucket(rows), buckets_.size() - 1);
}

void VerificationPlanner::AddSample(uint32_t rows, double seconds) {
  size_t segment = 0;
  Bucket& bucket = buckets_[BucketOf(rows)];
  bucket.samples[bucket.num_samples % kMaxSamples] =
      seconds / CurveSeconds(rows, &segment);
  ++bucket.num_samples;
  bucket.newest_step = num_steps_;
  bucket.seen = bucket.num_samples >= kMinSamples;
  if (!bucket.seen) return;
  std::array<double, kMaxSamples> sorted = bucket.samples;
  const auto end =
      sorted.begin() + std::min<uint64_t>(bucket.num_samples, kMaxSamples);
  const auto median = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), median, end);
  bucket.ratio = *median;
}

// Forgets old samples, and bounds the buckets that are unseen.
void VerificationPlanner::UpdateRatios() {
  const Bucket* left = nullptr;  // The nearest seen one.
  for (Bucket& bucket : buckets_) {
    if (bucket.newest_step + kMemorySteps <= num_steps_) {
      bucket.num_samples = 0;
      bucket.seen = false;
    }
    if (bucket.seen) {
      left = &bucket;
    } else {
      bucket.ratio = left == nullptr ? 0 : LeastRatio(bucket, *left);
    }
  }
  const Bucket* right = nullptr;
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    if (bucket->seen) {
      right = &*bucket;
    } else if (right != nullptr) {
      bucket->ratio = std::max(bucket->ratio, LeastRatio(*bucket, *right));
    } else if (left == nullptr) {
      bucket->ratio = 1;  // Nothing is seen at all.
    }
  }
}

double VerificationPlanner::LeastRatio(const Bucket& unseen,
                                       const Bucket& seen) const {
  const double seen_seconds = seen.curve_seconds * seen.ratio;
  const double rows_ratio =
      static_cast<double>(unseen.first_rows) / std::max(1u, seen.first_rows);
  return std::max(
      seen_seconds * std::min(1.0, rows_ratio) / unseen.curve_seconds,
      seen.ratio / 2);
}

void VerificationPlanner::ListDrafts(std::span<const DraftRates> rates) {
  drafts_.clear();
  std::array<float, kMaxDraftTokens> ratios;
  for (uint32_t j = 0; j < kMaxDraftTokens; ++j) ratios[j] = AcceptanceRatio(j);
  for (uint32_t i = 0; i < rates.size(); ++i) {
    CHECK_LE(rates[i].num_drafts, kMaxDraftTokens);
    float survival = 1;
    for (uint32_t j = 0; j < rates[i].num_drafts; ++j) {
      survival *= Probability(Probability(rates[i].confidence[j]) * ratios[j]);
      drafts_.push_back({kOneBits - std::bit_cast<uint32_t>(survival), i});
    }
  }
}

// Radix sort from the lowest digit: stable, and linear in the drafts.
void VerificationPlanner::SortDrafts() {
  constexpr uint32_t kDigitBits = 10, kDigits = 3, kBase = 1 << kDigitBits;
  static_assert(kOneBits < 1u << (kDigitBits * kDigits));
  std::array<std::array<uint32_t, kBase>, kDigits> next = {};
  for (const Draft& draft : drafts_) {
    for (uint32_t d = 0; d < kDigits; ++d) {
      ++next[d][draft.key >> (d * kDigitBits) & (kBase - 1)];
    }
  }
  scratch_.resize(drafts_.size());
  for (uint32_t d = 0; d < kDigits; ++d) {
    uint32_t begin = 0;
    for (uint32_t& count : next[d]) begin += std::exchange(count, begin);
    for (const Draft& draft : drafts_) {
      const uint32_t digit = draft.key >> (d * kDigitBits) & (kBase - 1);
      scratch_[next[d][digit]++] = draft;
    }
    drafts_.swap(scratch_);
  }
}

// How many of the first `limit` drafts maximise expected tokens over time.
size_t VerificationPlanner::CountWorthwhile(uint32_t num_sequences,
                                            size_t limit) const {
  if (curve_.empty() || limit == 0) return limit;
  size_t segment = 0;
  double expected = num_sequences;
  double best = expected / Seconds(num_sequences, &segment);
  size_t best_count = 0;
  for (size_t count = 1; count <= limit; ++count) {
    expected += std::bit_cast<float>(kOneBits - drafts_[count - 1].key);
    const auto rows = static_cast<uint32_t>(num_sequences + count);
    const double value = expected / Seconds(rows, &segment);
    if (value > best) {
      best = value;
      best_count = count;
    }
  }
  return best_count;
}

}  // namespace baton
