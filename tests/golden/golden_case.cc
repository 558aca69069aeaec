#include "tests/golden/golden_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <span>

#include "base/logging.h"
#include "tests/golden/npy.h"

namespace baton {
namespace {

using nlohmann::json;

std::vector<KnownLogits> BestOfPositions(const json& prompt,
                                         const std::string& suffix) {
  std::vector<KnownLogits> positions;
  const json ids = prompt.value("argmax_per_position" + suffix, json::array());
  for (size_t i = 0; i < ids.size(); ++i) {
    positions.push_back(
        {{ids[i].get<uint32_t>()},
         {prompt["max_per_position" + suffix][i].get<float>()}});
  }
  return positions;
}

// Infinite for a NaN, which std::max would pass over.
double Distance(float a, float b) {
  const double distance = std::fabs(a - b);
  return std::isnan(distance) ? std::numeric_limits<double>::infinity()
                              : distance;
}

double GreatestError(const KnownLogits& known, std::span<const float> logits) {
  double error = 0;
  for (size_t i = 0; i < known.ids.size(); ++i) {
    error = std::max(error, Distance(logits[known.ids[i]], known.logits[i]));
  }
  return error;
}

double ComparePrompt(const GoldenCase& golden,
                     std::span<const ModelDriver::Logits> logits) {
  double error = 0;
  const size_t end = logits.size();
  for (size_t i = 0; i < golden.first_positions.size(); ++i) {
    error =
        std::max(error, GreatestError(golden.first_positions[i], logits[i]));
  }
  const size_t num_last = golden.last_positions.size();
  for (size_t i = 0; i < num_last; ++i) {
    error = std::max(error, GreatestError(golden.last_positions[i],
                                          logits[end - num_last + i]));
  }
  for (size_t i = 0; i < golden.last_prompt_logits.size(); ++i) {
    error = std::max(
        error, Distance(golden.last_prompt_logits[i], logits[end - 1][i]));
  }
  return error;
}

}  // namespace

const std::vector<std::string>& TinyCaseNames() {
  static const auto& names = *new std::vector<std::string>{
      "accents",      "alice",      "arith",       "bos_only",
      "chat_capital", "chat_hello", "chat_json",   "chat_long_3000",
      "chat_nothink", "chat_story", "chat_system", "code",
      "count",        "emoji",      "fox",         "holmes",
      "json",         "list",       "newline",     "once",
      "one_word",     "prose_256",  "random_ids",  "space",
      "stories_1500"};
  return names;
}

const std::vector<std::string>& RandomCaseNames() {
  static const auto& names =
      *new std::vector<std::string>{"len_1",  "len_2",  "len_7",   "len_63",
                                    "len_64", "len_65", "len_200", "len_300"};
  return names;
}

std::vector<GoldenCase> ReadCases(const std::string& folder,
                                  const std::vector<std::string>& names) {
  std::vector<GoldenCase> cases;
  for (const std::string& name : names) {
    cases.push_back(ReadCase(folder, name));
  }
  return cases;
}

std::vector<GoldenCase> ReadFp8Cases(const std::string& path) {
  std::ifstream file(path);
  CHECK(file.good()) << path;
  const json stored = json::parse(file);
  std::vector<GoldenCase> cases;
  for (const json& result : stored["results"]) {
    cases.push_back(MakeCase(result, result));
  }
  return cases;
}

GoldenCase MakeCase(const json& name_and_ids, const json& result) {
  GoldenCase golden;
  golden.name = name_and_ids["name"];
  golden.prompt = name_and_ids["ids"].get<std::vector<uint32_t>>();
  golden.tokens = result["tokens"].get<std::vector<uint32_t>>();
  golden.margins = result["margins"].get<std::vector<float>>();
  for (const json& step : result["top5_first8"]) {
    golden.first_steps.push_back({step["ids"].get<std::vector<uint32_t>>(),
                                  step["logits"].get<std::vector<float>>()});
  }
  const json prompt = result.value("prompt", json::object());
  golden.first_positions = BestOfPositions(prompt, "");
  golden.last_positions = BestOfPositions(prompt, "_tail");
  const json drafts = result.contains("mtp_drafts") ? result["mtp_drafts"]
                      : result.contains("mtp")      ? result["mtp"]["drafts"]
                                                    : json::array();
  golden.drafts = drafts.get<std::vector<uint32_t>>();
  return golden;
}

GoldenCase ReadCase(const std::string& folder, const std::string& name) {
  std::ifstream file(folder + "/" + name + ".json");
  CHECK(file.good()) << folder << " " << name;
  const json value = json::parse(file);
  const json& result = value["fp32"];
  GoldenCase golden = MakeCase(value, result);
  const auto read_logits = [&](const json& from) {
    return from.contains("logits_file")
               ? ReadNpyF32(folder + "/" + from.value("logits_file", ""))
               : std::vector<float>();
  };
  golden.last_prompt_logits = read_logits(result);
  golden.first_draft_logits = read_logits(result.value("mtp", json::object()));
  return golden;
}

GoldenReport CompareWithGolden(const GoldenCase& golden, int chunk,
                               ModelDriver* driver) {
  SCOPED_TRACE(golden.name);
  driver->Reset();
  const int sequence =
      driver->NewSequence(static_cast<int>(golden.prompt.size()));
  std::vector<ModelDriver::Logits> logits =
      driver->Prefill(sequence, golden.prompt, chunk);
  GoldenReport report;
  report.greatest_error = ComparePrompt(golden, logits);
  for (size_t step = 0; step < golden.tokens.size(); ++step) {
    const uint32_t token = Argmax(logits.back());
    if (step < golden.first_steps.size()) {
      report.greatest_error =
          std::max(report.greatest_error,
                   GreatestError(golden.first_steps[step], logits.back()));
    }
    if (token != golden.tokens[step]) {
      EXPECT_LT(golden.margins[step], kExcusedMargin)
          << "step " << step << ": token " << token << ", reference "
          << golden.tokens[step];
      report.excused_step = static_cast<int>(step);
      break;
    }
    logits = driver->Prefill(sequence, std::span(&token, 1), 1);
  }
  EXPECT_LE(report.greatest_error, kLogitTolerance);
  return report;
}

}  // namespace baton
