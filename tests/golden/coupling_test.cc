// How often drafts are right at temperature 1, where drafter and model draw
// with the same noise: as often as theory says. Of two distributions p and q at
// a total variation distance d, such draws agree with probability
//   sum over i of 1 / (sum over j of max(p_j / p_i, q_j / q_i)),
// which lies in [(1 - d) / (1 + d), 1 - d].
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "engine/generation_request.h"
#include "kernels/cpu_context.h"
#include "kernels/matrix_view.h"
#include "kernels/sample.h"
#include "kernels/thread_pool.h"
#include "tests/golden/drafted_sequence.h"
#include "tests/golden/golden_case.h"
#include "tests/invariance/token_machine.h"

namespace baton {
namespace {

constexpr char kModel[] = "models/tiny-deepseek-v3";
constexpr uint32_t kTokens = 48;
constexpr uint32_t kSamples = 12;
constexpr size_t kLongestPrompt = DraftedSequence::kMaxTokens - kTokens;

using Distribution = std::vector<double>;

Distribution Softmax(std::span<const float> logits) {
  const double greatest = *std::ranges::max_element(logits);
  Distribution p;
  for (const float logit : logits) p.push_back(std::exp(logit - greatest));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& one : p) one /= sum;
  return p;
}

// How likely draws from p and q agree.
struct Agreement {
  double lower = 0;
  double upper = 0;
  double coupled = 0;      // With the same noise.
  double independent = 0;  // With noise of their own.
};

Agreement AgreementOf(const Distribution& p, const Distribution& q) {
  std::vector<size_t> falling(p.size());
  std::iota(falling.begin(), falling.end(), size_t{0});
  std::ranges::sort(
      falling, [&](size_t i, size_t j) { return p[i] * q[j] > p[j] * q[i]; });
  Agreement agreement;
  double distance = 0;
  double p_before = 0;  // Of those whose p is as great beside q, or greater.
  double q_behind = 1;
  for (const size_t i : falling) {
    p_before += p[i];
    q_behind -= q[i];
    agreement.coupled += 1 / (p_before / p[i] + std::max(q_behind, 0.0) / q[i]);
    agreement.independent += p[i] * q[i];
    distance += std::fabs(p[i] - q[i]) / 2;
  }
  agreement.lower = (1 - distance) / (1 + distance);
  agreement.upper = 1 - distance;
  return agreement;
}

TEST(AgreementTest, OfDistributionsWhoseAgreementIsKnown) {
  const Distribution p = {0.5, 0.3, 0.2};
  const Agreement same = AgreementOf(p, p);
  for (const double one : {same.lower, same.upper, same.coupled}) {
    EXPECT_NEAR(one, 1, 1e-12);
  }
  EXPECT_NEAR(same.independent, 0.38, 1e-12);
  // Of two tokens: each agreement is a race of three.
  const Agreement two = AgreementOf({0.8, 0.2}, {0.4, 0.6});
  EXPECT_NEAR(two.coupled, 1 / (1 + 0.6 / 0.4) + 1 / (0.8 / 0.2 + 1), 1e-12);
  EXPECT_NEAR(two.lower, 0.6 / 1.4, 1e-12);
  EXPECT_NEAR(two.upper, 0.6, 1e-12);
}

// Of all verified drafts.
struct Tally {
  uint32_t verified = 0;
  uint32_t accepted = 0;
  Agreement sum;
  double variance = 0;  // Of `accepted`.

  void Add(const Agreement& agreement) {
    ++verified;
    sum.lower += agreement.lower;
    sum.upper += agreement.upper;
    sum.coupled += agreement.coupled;
    sum.independent += agreement.independent;
    variance += agreement.coupled * (1 - agreement.coupled);
  }
};

// What an engine with one draft a step did, given its tokens.
class Replay {
 public:
  Replay() : driver_(DraftedSequence::Load(kModel)) {}

  const Tally& tally() const { return tally_; }

  void Add(const GenerationRequest& request,
           const std::vector<uint32_t>& generated) {
    driver_->Reset();
    DraftedSequence sequence(driver_.get());
    std::vector<uint32_t> tokens = request.token_ids;
    tokens.insert(tokens.end(), generated.begin(), generated.end());
    std::vector<ModelDriver::Logits> target;
    std::vector<ModelDriver::Logits> drafter =
        sequence.Add(std::span(tokens).first(tokens.size() - 1), &target);
    // The last token is never drafted: it would need a row.
    for (size_t at = request.token_ids.size() + 1; at + 1 < tokens.size();) {
      ASSERT_EQ(Draw(request, at, target[at - 1]), tokens[at]);
      // The drafter has nothing to tell behind the first token.
      ModelDriver::Logits& draft_logits = drafter[at - 2];
      const Agreement agreement =
          AgreementOf(Softmax(target[at - 1]), Softmax(draft_logits));
      ASSERT_GT(agreement.coupled, agreement.lower - 1e-9);
      ASSERT_LT(agreement.coupled, agreement.upper + 1e-9);
      tally_.Add(agreement);
      const bool accepted = Draw(request, at, draft_logits) == tokens[at];
      tally_.accepted += accepted;
      // The token behind an accepted one comes with it.
      at += accepted ? 2 : 1;
    }
  }

 private:
  uint32_t Draw(const GenerationRequest& request, size_t position,
                ModelDriver::Logits& logits) {
    const SampleParams params = {.temperature = request.sampling.temperature,
                                 .seed = request.sampling.seed,
                                 .sample_index = request.sample_index,
                                 .position = position};
    SampledToken drawn;
    Sample(
        {SupportedVectorIsas().back(), &threads_},
        Dense<const float>(logits.data(), 1, static_cast<int>(logits.size())),
        {&params, 1}, {&drawn, 1});
    return drawn.token_id;
  }

  const std::unique_ptr<ModelDriver> driver_;
  ThreadPool threads_{{.num_threads = 1}};
  Tally tally_;
};

std::vector<GenerationRequest> Requests() {
  std::vector<GenerationRequest> requests;
  for (const GoldenCase& golden :
       ReadCases("models/tiny-deepseek-v3/golden", TinyCaseNames())) {
    if (golden.prompt.size() > kLongestPrompt) continue;
    GenerationRequest& request = requests.emplace_back();
    request.id = {.router_nonce = 1, .counter = requests.size()};
    request.token_ids = golden.prompt;
    request.original_prompt_tokens =
        static_cast<uint32_t>(golden.prompt.size());
    request.num_samples = kSamples;
    request.sampling = {.temperature = 1, .seed = 1000 + requests.size()};
    request.max_tokens = kTokens;
  }
  return requests;
}

// A draft is right or not by noise of its own, given all before it, so the sum
// stays within 4 standard deviations of what is expected but once in 16,000.
TEST(CouplingTest, DraftsAreRightAsOftenAsTheDistancesSay) {
  const std::vector<GenerationRequest> requests = Requests();
  const MachineResult run = RunRequests(kModel,
                                        {.max_running_requests = 32,
                                         .isa = SupportedVectorIsas().back(),
                                         .num_draft_tokens = 1},
                                        requests);
  const std::vector<GenerationRequest> samples = SamplesAlone(requests);
  ASSERT_EQ(run.sequences.size(), samples.size());
  Replay replay;
  for (size_t i = 0; i < samples.size(); ++i) {
    replay.Add(samples[i], run.sequences[i].token_ids);
  }
  const Tally& tally = replay.tally();
  EXPECT_EQ(tally.verified, run.drafts_verified[0]);
  EXPECT_EQ(tally.accepted, run.drafts_accepted[0]);

  const double count = run.drafts_verified[0];
  const double observed = run.drafts_accepted[0] / count;
  const double margin = 4 * std::sqrt(tally.variance) / count;
  std::cout << requests.size() << " texts, " << kSamples
            << " samples each: " << run.drafts_accepted[0] << " of " << count
            << " first drafts accepted, " << observed << "; bounds "
            << tally.sum.lower / count << " and " << tally.sum.upper / count
            << ", expected " << tally.sum.coupled / count << ", margin "
            << margin << "; with noise of their own "
            << tally.sum.independent / count << '\n';
  EXPECT_GE(observed, tally.sum.lower / count - margin);
  EXPECT_LE(observed, tally.sum.upper / count + margin);
  EXPECT_NEAR(observed, tally.sum.coupled / count, margin);
  // Else the test would show nothing.
  EXPECT_LT(tally.sum.independent, tally.sum.lower - margin * count);
}

}  // namespace
}  // namespace baton
