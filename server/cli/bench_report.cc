#include "server/cli/bench_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"

namespace baton {
namespace {

struct Summary {
  size_t num_tokens = 0;
  size_t good_requests = 0;  // Within the limits.
  double good_share = 0;     // Of all that were sent.
  double goodput = 0;        // A second.
  double tokens_per_second = 0;
  double input_tokens_per_second = 0;
  // Per token over client and servers; of the client alone without --pids.
  double cpu_us_per_token = 0;
  std::array<std::vector<absl::Duration>, 5> latencies;  // As kLatencyNames.
};

constexpr std::array<const char*, 5> kLatencyNames = {"ttft", "tpot", "itl",
                                                      "e2e", "ttst"};
constexpr std::array<double, 3> kPercents = {50, 90, 99};

// Microseconds; 0 without any token.
double PerToken(absl::Duration cpu_time, size_t num_tokens) {
  return num_tokens > 0 ? absl::ToDoubleMicroseconds(cpu_time) / num_tokens : 0;
}

Summary Summarise(const BenchLevel& level) {
  Summary summary;
  size_t input_tokens = 0;
  auto& [ttft, tpot, itl, e2e, ttst] = summary.latencies;
  for (const TokenTiming& request : level.requests) {
    summary.num_tokens += request.num_tokens;
    input_tokens += request.prompt_tokens;
    e2e.push_back(request.e2e);
    if (request.ttft <= level.limits.ttft &&
        request.tpot <= level.limits.tpot) {
      ++summary.good_requests;
    }
    if (request.num_tokens > 0) ttft.push_back(request.ttft);
    if (request.num_tokens > 1) tpot.push_back(request.tpot);
    if (request.num_tokens > 1) ttst.push_back(request.ttst);
    itl.insert(itl.end(), request.itl.begin(), request.itl.end());
  }
  for (auto& values : summary.latencies) {
    std::sort(values.begin(), values.end());
  }
  if (level.wall_time > absl::ZeroDuration()) {
    const double seconds = absl::ToDoubleSeconds(level.wall_time);
    summary.tokens_per_second = summary.num_tokens / seconds;
    summary.input_tokens_per_second = input_tokens / seconds;
    summary.goodput = summary.good_requests / seconds;
  }
  const size_t sent = level.requests.size() + level.failed_requests;
  if (sent > 0) {
    summary.good_share = static_cast<double>(summary.good_requests) / sent;
  }
  absl::Duration cpu = level.client_cpu_time;
  for (const ProcessUsage& server : level.servers) cpu += server.cpu_time;
  summary.cpu_us_per_token = PerToken(cpu, summary.num_tokens);
  return summary;
}

// Nothing without limits.
std::string GoodputLine(const BenchLevel& level, const Summary& summary) {
  std::string limits;
  for (const auto& [name, limit] :
       {std::pair("TTFT", level.limits.ttft), {"TPOT", level.limits.tpot}}) {
    if (limit == absl::InfiniteDuration()) continue;
    limits += absl::StrFormat("%s%s %.4g ms", limits.empty() ? "" : " and ",
                              name, absl::ToDoubleMilliseconds(limit));
  }
  if (limits.empty()) return "";
  return absl::StrFormat("%22s goodput %.4g/s: %.1f %% within %s\n", "",
                         summary.goodput, 100 * summary.good_share, limits);
}

}  // namespace

absl::Duration Percentile(const std::vector<absl::Duration>& values,
                          double percent) {
  if (values.empty()) return absl::ZeroDuration();
  const auto rank =
      static_cast<size_t>(std::ceil(percent / 100 * values.size()));
  return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

std::string LoadName(const BenchLevel& level) {
  return level.clients > 0 ? absl::StrFormat("%d client%s", level.clients,
                                             level.clients == 1 ? "" : "s")
                           : absl::StrFormat("%.4g/s", level.rate);
}

nlohmann::json LevelJson(const BenchLevel& level) {
  const Summary summary = Summarise(level);
  nlohmann::json json = {
      {"requests", level.requests.size()},
      {"failed_requests", level.failed_requests},
      {"output_tokens", summary.num_tokens},
      {"wall_seconds", absl::ToDoubleSeconds(level.wall_time)},
      {"tokens_per_second", summary.tokens_per_second},
      {"input_tokens_per_second", summary.input_tokens_per_second},
      {"good_requests", summary.good_requests},
      {"good_share", summary.good_share},
      {"goodput_per_second", summary.goodput},
      {"client_cpu_seconds", absl::ToDoubleSeconds(level.client_cpu_time)},
      {"cpu_us_per_token", summary.cpu_us_per_token}};
  if (level.clients > 0) {
    json["clients"] = level.clients;
  } else {
    json["rate"] = level.rate;
  }
  for (const ProcessUsage& server : level.servers) {
    json["servers"].push_back(
        {{"pid", server.pid},
         {"name", server.name},
         {"cpu_seconds", absl::ToDoubleSeconds(server.cpu_time)},
         {"resident_bytes", server.resident_bytes}});
  }
  for (size_t i = 0; i < kLatencyNames.size(); ++i) {
    nlohmann::json& latency = json[std::string(kLatencyNames[i]) + "_seconds"];
    for (const double percent : kPercents) {
      latency[absl::StrFormat("p%.0f", percent)] =
          absl::ToDoubleSeconds(Percentile(summary.latencies[i], percent));
    }
  }
  return json;
}

std::string ReportTable(const std::vector<BenchLevel>& levels) {
  std::string table =
      absl::StrFormat("%12s %8s %6s %8s %9s %9s %9s", "load", "requests",
                      "failed", "tokens", "tokens/s", "input/s", "CPU us/tk");
  for (const char* name : kLatencyNames) {
    for (const double percent : kPercents) {
      table +=
          absl::StrFormat(" %9s", absl::StrFormat("%s p%.0f", name, percent));
    }
  }
  table += "   (latencies in ms)\n";
  for (const BenchLevel& level : levels) {
    const Summary summary = Summarise(level);
    table += absl::StrFormat(
        "%12s %8d %6d %8d %9.0f %9.0f %9.1f", LoadName(level),
        level.requests.size(), level.failed_requests, summary.num_tokens,
        summary.tokens_per_second, summary.input_tokens_per_second,
        summary.cpu_us_per_token);
    for (const auto& values : summary.latencies) {
      for (const double percent : kPercents) {
        table += absl::StrFormat(
            " %9.2f", absl::ToDoubleMilliseconds(Percentile(values, percent)));
      }
    }
    table +=
        absl::StrFormat("\n%22s CPU us/tk: client %.1f", "",
                        PerToken(level.client_cpu_time, summary.num_tokens));
    for (const ProcessUsage& server : level.servers) {
      table +=
          absl::StrFormat(", %s[%d] %.1f (%.0f MB)", server.name, server.pid,
                          PerToken(server.cpu_time, summary.num_tokens),
                          server.resident_bytes / 1e6);
    }
    table += "\n" + GoodputLine(level, summary);
  }
  return table;
}

std::vector<Plot> SweepPlots(const std::vector<BenchLevel>& levels) {
  Plot decode = {.title = "Decode",
                 .x_label = "tokens/s for a user (1 / median TPOT)",
                 .y_label = "output tokens/s"};
  Plot prefill = {.title = "Prefill",
                  .x_label = "median TTFT, ms",
                  .y_label = "input tokens/s"};
  for (const BenchLevel& level : levels) {
    const Summary summary = Summarise(level);
    const absl::Duration ttft = Percentile(summary.latencies[0], 50);
    const absl::Duration tpot = Percentile(summary.latencies[1], 50);
    if (tpot > absl::ZeroDuration()) {
      decode.points.push_back({1 / absl::ToDoubleSeconds(tpot),
                               summary.tokens_per_second, LoadName(level)});
    }
    if (ttft > absl::ZeroDuration()) {
      prefill.points.push_back({absl::ToDoubleMilliseconds(ttft),
                                summary.input_tokens_per_second,
                                LoadName(level)});
    }
  }
  return {decode, prefill};
}

}  // namespace baton
