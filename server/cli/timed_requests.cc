#include "server/cli/timed_requests.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <optional>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

// Of the Mooncake traces.
constexpr uint32_t kBlockTokens = 512;

struct TraceLine {
  absl::Time time;
  RequestShape shape;
  std::vector<uint64_t> blocks = {};
};

std::optional<TraceLine> ParseCsvLine(const std::string& line) {
  const std::vector<std::string> fields = absl::StrSplit(line, ',');
  TraceLine parsed;
  std::string error;
  if (fields.size() != 3 ||
      !absl::ParseTime("%Y-%m-%d %H:%M:%E*S", fields[0], &parsed.time,
                       &error) ||
      !absl::SimpleAtoi(fields[1], &parsed.shape.prompt_tokens) ||
      !absl::SimpleAtoi(fields[2], &parsed.shape.max_tokens)) {
    return std::nullopt;
  }
  return parsed;
}

std::optional<TraceLine> ParseJsonLine(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  for (const char* key : {"timestamp", "input_length", "output_length"}) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_unsigned()) {
      return std::nullopt;
    }
  }
  TraceLine parsed = {
      .time = absl::FromUnixMillis(json["timestamp"].get<int64_t>()),
      .shape = {.prompt_tokens = json["input_length"].get<uint32_t>(),
                .max_tokens = json["output_length"].get<uint32_t>()}};
  for (const nlohmann::json& id :
       json.value("hash_ids", nlohmann::json::array())) {
    if (!id.is_number_unsigned()) return std::nullopt;
    parsed.blocks.push_back(id.get<uint64_t>());
  }
  return parsed;
}

TimedRequest ToRequest(TraceLine line, absl::Time first,
                       const TraceLengths& lengths) {
  const auto fit = [&](uint32_t length, uint32_t bound) {
    return std::clamp(length / lengths.divisor, 1u, bound);
  };
  TimedRequest request = {
      .send = line.time - first,
      .shape = {
          .prompt_tokens =
              fit(line.shape.prompt_tokens, lengths.bound.prompt_tokens),
          .max_tokens = fit(line.shape.max_tokens, lengths.bound.max_tokens)}};
  const uint32_t block_tokens = std::max(1u, kBlockTokens / lengths.divisor);
  // Those that the lines name; a shorter list would name other tokens.
  if (line.blocks.size() * uint64_t{block_tokens} >=
      request.shape.prompt_tokens) {
    request.blocks = std::move(line.blocks);
    request.block_tokens = block_tokens;
  }
  return request;
}

}  // namespace

std::vector<TimedRequest> PoissonRequests(double rate, uint32_t count,
                                          uint64_t seed, RequestShape shape) {
  std::mt19937_64 random(seed);
  std::vector<TimedRequest> requests;
  absl::Duration now;
  for (uint32_t i = 0; i < count; ++i) {
    // In (0, 1], so that the logarithm is finite.
    const double uniform =
        (static_cast<double>(random() >> 11) + 1) / 9007199254740992.0;
    now += absl::Seconds(-std::log(uniform) / rate);
    requests.push_back({.send = now, .shape = shape});
  }
  return requests;
}

absl::StatusOr<std::vector<TimedRequest>> ReadTrace(
    const std::string& path, uint32_t limit, const TraceLengths& lengths) {
  std::ifstream file(path);
  if (!file) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read ", path));
  }
  std::vector<TimedRequest> requests;
  std::optional<absl::Time> first;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (limit > 0 && requests.size() == limit) break;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const bool header = number == 1 && line.starts_with("TIMESTAMP");
    if (header || line.empty()) continue;
    auto parsed = line[0] == '{' ? ParseJsonLine(line) : ParseCsvLine(line);
    if (!parsed.has_value() || parsed->time < first.value_or(parsed->time)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": no request of a trace"));
    }
    if (!first.has_value()) first = parsed->time;
    requests.push_back(ToRequest(*std::move(parsed), *first, lengths));
  }
  if (requests.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no request"));
  }
  std::stable_sort(requests.begin(), requests.end(),
                   [](const TimedRequest& a, const TimedRequest& b) {
                     return a.send < b.send;
                   });
  return requests;
}

void ScaleToRate(double rate, std::vector<TimedRequest>* requests) {
  const double now = MeanRate(*requests);
  if (now == 0) return;
  for (TimedRequest& request : *requests) request.send *= now / rate;
}

double MeanRate(const std::vector<TimedRequest>& requests) {
  if (requests.size() < 2) return 0;
  const absl::Duration time = requests.back().send - requests.front().send;
  if (time <= absl::ZeroDuration()) return 0;
  return static_cast<double>(requests.size() - 1) / absl::ToDoubleSeconds(time);
}

}  // namespace baton
