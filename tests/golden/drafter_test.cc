// The drafter's tokens against the stored ones of every case, in float32.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/model/testing/model_driver.h"
#include "tests/golden/drafted_sequence.h"
#include "tests/golden/fp8_model.h"
#include "tests/golden/golden_case.h"

namespace baton {
namespace {

// An engine that drafts one token at a time, given what it would draft behind
// each of the greedy tokens.
struct Acceptance {
  int drafted = 0;
  int accepted = 0;

  void Add(std::span<const uint32_t> drafts, std::span<const uint32_t> tokens) {
    for (size_t k = 0; k < drafts.size(); ++k) {
      ++drafted;
      if (drafts[k] != tokens[k + 1]) continue;
      ++accepted;
      ++k;  // The token behind the accepted one came with it.
    }
  }
  double share() const { return static_cast<double>(accepted) / drafted; }
  bool operator==(const Acceptance&) const = default;
};

double Margin(ModelDriver::Logits logits) {
  std::ranges::nth_element(logits, logits.begin() + 1, std::greater());
  return logits[0] - logits[1];
}

struct DraftReport {
  Acceptance acceptance;
  int num_drafts = 0;
  int num_excused = 0;
  double greatest_error = 0;  // Of stored logits.
};

// The drafts behind the case's greedy tokens; failures for what differs.
std::vector<uint32_t> CompareDrafts(const GoldenCase& golden,
                                    ModelDriver* driver, DraftReport* report) {
  SCOPED_TRACE(golden.name);
  driver->Reset();
  DraftedSequence sequence(driver);
  std::vector<uint32_t> tokens = golden.prompt;
  tokens.insert(tokens.end(), golden.tokens.begin(), golden.tokens.end() - 1);
  std::vector<ModelDriver::Logits> logits;
  for (size_t first = 0; first < tokens.size();
       first += DraftedSequence::kMaxTokens) {
    const size_t count =
        std::min<size_t>(DraftedSequence::kMaxTokens, tokens.size() - first);
    std::ranges::move(sequence.Add(std::span(tokens).subspan(first, count)),
                      std::back_inserter(logits));
  }
  // logits[i] lies behind slot i + 1.
  logits.erase(logits.begin(), logits.begin() + golden.prompt.size() - 1);
  EXPECT_EQ(logits.size(), golden.drafts.size());
  for (size_t i = 0; i < golden.first_draft_logits.size(); ++i) {
    const double error = std::fabs(golden.first_draft_logits[i] - logits[0][i]);
    EXPECT_LE(error, kLogitTolerance) << "logit " << i;
    report->greatest_error = std::max(report->greatest_error, error);
  }
  std::vector<uint32_t> drafts;
  for (size_t k = 0; k < logits.size(); ++k) {
    drafts.push_back(Argmax(logits[k]));
    ++report->num_drafts;
    if (drafts[k] == golden.drafts[k]) continue;
    ++report->num_excused;
    EXPECT_LT(Margin(logits[k]), kExcusedMargin)
        << "step " << k << ": draft " << drafts[k] << ", reference "
        << golden.drafts[k];
  }
  return drafts;
}

DraftReport CompareAll(const std::string& model,
                       const std::vector<GoldenCase>& cases,
                       const std::string& folder) {
  DraftReport report;
  const auto driver = DraftedSequence::Load(folder);
  Acceptance stored;
  for (const GoldenCase& golden : cases) {
    report.acceptance.Add(CompareDrafts(golden, driver.get(), &report),
                          golden.tokens);
    stored.Add(golden.drafts, golden.tokens);
  }
  EXPECT_EQ(report.acceptance, stored);
  std::cout << model << ": " << report.num_drafts << " drafts, "
            << report.num_excused << " excused; one at a time, "
            << report.acceptance.accepted << " of " << report.acceptance.drafted
            << " are accepted (" << 100 * report.acceptance.share() << " %)\n";
  return report;
}

TEST(DrafterTest, TinyDeepSeekV3) {
  const DraftReport report =
      CompareAll("tiny-deepseek-v3",
                 ReadCases("models/tiny-deepseek-v3/golden", TinyCaseNames()),
                 "models/tiny-deepseek-v3");
  EXPECT_EQ(report.num_drafts, 25 * 63);
  EXPECT_EQ(report.acceptance.drafted, 863);
  EXPECT_NEAR(report.acceptance.share(), 0.841, 0.0005);
}

TEST(DrafterTest, TinyDeepSeekV3Fp8) {
  const DraftReport report = CompareAll(
      "tiny-deepseek-v3-fp8",
      ReadFp8Cases("models/tiny-deepseek-v3-fp8/golden/fp8.json"),
      WriteQuantizedModel("models/tiny-deepseek-v3",
                          "models/tiny-deepseek-v3-fp8/config.json"));
  EXPECT_EQ(report.num_drafts, 8 * 63);
}

TEST(DrafterTest, RandomDeepSeekV3Yarn) {
  const DraftReport report = CompareAll(
      "random-deepseek-v3-yarn",
      ReadCases("models/random-deepseek-v3-yarn/golden", RandomCaseNames()),
      "models/random-deepseek-v3-yarn");
  EXPECT_EQ(report.num_drafts, 8 * 31);
  EXPECT_EQ(report.num_excused, 0);
  EXPECT_GT(report.greatest_error, 0);
  std::cout << "greatest error of a logit " << report.greatest_error << '\n';
}

// mtp_chain.py computes them.
TEST(DrafterTest, ChainedDraftsEqualThePlainReference) {
  const auto driver = DraftedSequence::Load("models/tiny-deepseek-v3");
  std::ifstream file("tests/golden/mtp_chain.json");
  const nlohmann::json stored = nlohmann::json::parse(file);
  ASSERT_EQ(stored.size(), 2);
  for (const nlohmann::json& of_case : stored) {
    const GoldenCase golden =
        ReadCase("models/tiny-deepseek-v3/golden", of_case["name"]);
    SCOPED_TRACE(golden.name);
    DraftedSequence sequence(driver.get());
    sequence.Add(golden.prompt);
    ASSERT_EQ(of_case["chains"].size(), golden.tokens.size() - 1);
    for (size_t k = 0; k + 1 < golden.tokens.size(); ++k) {
      std::vector<uint32_t> drafts = {
          Argmax(sequence.Add(std::span(golden.tokens).subspan(k, 1))[0])};
      for (int ahead = 1; ahead < 5; ++ahead) {
        drafts.push_back(Argmax(sequence.Chain(drafts.back(), ahead)));
      }
      EXPECT_EQ(drafts, of_case["chains"][k]["drafts"]) << k;
    }
  }
}

}  // namespace
}  // namespace baton
