// One stored result of the reference, and its comparison with the engine's.
#ifndef BATON_TESTS_GOLDEN_GOLDEN_CASE_H_
#define BATON_TESTS_GOLDEN_GOLDEN_CASE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/testing/model_driver.h"

namespace baton {

// A few logits of one position.
struct KnownLogits {
  std::vector<uint32_t> ids;
  std::vector<float> logits;
};

struct GoldenCase {
  std::string name;
  std::vector<uint32_t> prompt;
  std::vector<uint32_t> tokens;  // Greedy, past the end of text too.
  std::vector<float> margins;    // Top-1 minus top-2, at each of `tokens`.
  std::vector<KnownLogits> first_steps;
  std::vector<float> last_prompt_logits;  // All of them, or none.
  // Best token of the first and of the last prompt positions, perhaps none.
  std::vector<KnownLogits> first_positions;
  std::vector<KnownLogits> last_positions;
  // Drafted behind each of `tokens` but the last; none without a drafter.
  std::vector<uint32_t> drafts;
  std::vector<float> first_draft_logits;  // All of them, or none.
};

// `result` holds tokens, margins and top5_first8 of the case, perhaps drafts.
GoldenCase MakeCase(const nlohmann::json& name_and_ids,
                    const nlohmann::json& result);
// NAME.json of a golden folder, with its .npy files if it has them.
GoldenCase ReadCase(const std::string& folder, const std::string& name);
std::vector<GoldenCase> ReadCases(const std::string& folder,
                                  const std::vector<std::string>& names);
// The FP8 model's cases, which are in one file.
std::vector<GoldenCase> ReadFp8Cases(const std::string& path);

// Names of the tiny model's cases, and of each random model's.
const std::vector<std::string>& TinyCaseNames();
const std::vector<std::string>& RandomCaseNames();

// What a comparison found; everything else has failed the test.
struct GoldenReport {
  double greatest_error = 0;  // Of all logits compared.
  // The step of an excused difference, which ended the comparison.
  std::optional<int> excused_step;
};

inline constexpr double kLogitTolerance = 2e-3;
inline constexpr double kExcusedMargin = 1e-3;

// Prompt in chunks, then greedy steps; gtest failures for what differs.
GoldenReport CompareWithGolden(const GoldenCase& golden, int chunk,
                               ModelDriver* driver);

}  // namespace baton

#endif  // BATON_TESTS_GOLDEN_GOLDEN_CASE_H_
