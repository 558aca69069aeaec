#include "server/cli/bench.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "server/cli/bench_report.h"
#include "server/cli/generation_stream.h"
#include "server/cli/load_loop.h"
#include "server/cli/plot.h"
#include "server/cli/process_cpu.h"
#include "server/cli/random_prompt.h"
#include "server/cli/rpc_error.h"
#include "server/cli/timed_requests.h"

namespace baton {

const char kBenchDescription[] =
    "Measures a router under load.\n"
    "Closed loop: each client sends its next request when its last one has "
    "ended. Open loop\n(--rate, --trace): requests are sent at their times, "
    "whatever has ended, and times count\nfrom there. Prompts are random "
    "token ids; every request runs to its full length.\n"
    "  TTFT  first token, of any sample, minus send\n"
    "  ITL   the gaps between successive token arrivals of a sample; tokens of "
    "one message have\n"
    "        gaps of 0\n"
    "  TTST  second token minus first one\n"
    "  TPOT  (E2E - TTFT) / (output tokens of a sample - 1)\n"
    "  E2E   last token minus send\n"
    "Percentiles are nearest ranks over all requests of a level, of ITL over "
    "all gaps.\n"
    "Goodput counts the requests a second, of all that were sent, that kept "
    "--ttft_limit and\n--tpot_limit.\n"
    "--sweep draws each level twice: output tokens/s against tokens/s of one "
    "user (1 / TPOT),\nand input tokens/s against TTFT, medians.";

namespace {

constexpr absl::Duration kProgressInterval = absl::Seconds(1);

// Of an open loop, where nothing else is said.
constexpr double kSecondsOfRequests = 30;

struct LoadLevel {
  uint32_t clients = 0;  // 0: open.
  double rate = 0;       // Open: requests a second, in the mean.
  uint32_t num_requests = 0;
  std::vector<TimedRequest> timed = {};  // Open.
};

struct LoadPlan {
  std::vector<LoadLevel> levels;
  std::vector<pid_t> pids;
};

RequestShape ShapeOf(const BenchOptions& options) {
  return {.prompt_tokens = options.prompt_tokens,
          .max_tokens = options.max_tokens};
}

absl::StatusOr<std::vector<LoadLevel>> ClosedLevels(
    const BenchOptions& options) {
  std::vector<LoadLevel> levels;
  std::vector<std::string> texts = options.clients;
  if (texts.empty()) texts = {"1", "16", "32"};
  for (const std::string& text : texts) {
    const auto numbers = ParseTokenIds(text);
    if (!numbers.ok() || numbers->size() != 1 || numbers->front() == 0 ||
        numbers->front() > 4096) {
      return FieldError("clients",
                        "\"" + text + "\" is no number of clients, 1 to 4096");
    }
    const uint32_t clients = numbers->front();
    levels.push_back({.clients = clients,
                      .num_requests = options.requests > 0 ? options.requests
                                                           : 4 * clients});
  }
  return levels;
}

LoadLevel OpenLevel(double rate, std::vector<TimedRequest> timed) {
  LoadLevel level = {.rate = rate,
                     .num_requests = static_cast<uint32_t>(timed.size())};
  level.timed = std::move(timed);
  return level;
}

absl::StatusOr<std::vector<double>> Rates(const BenchOptions& options) {
  std::vector<double> rates;
  for (const std::string& text : options.rate) {
    double rate = 0;
    // Not a number is refused too.
    if (!absl::SimpleAtod(text, &rate) || !(rate > 0) || rate > 100'000) {
      return FieldError("rate", "\"" + text + "\" is no rate up to 100000");
    }
    rates.push_back(rate);
  }
  return rates;
}

absl::StatusOr<std::vector<LoadLevel>> PoissonLevels(
    const BenchOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<double> rates, Rates(options));
  std::vector<LoadLevel> levels;
  for (const double rate : rates) {
    const uint32_t count =
        options.requests > 0
            ? options.requests
            : static_cast<uint32_t>(std::ceil(rate * kSecondsOfRequests));
    levels.push_back(OpenLevel(
        rate, PoissonRequests(rate, count, options.seed, ShapeOf(options))));
  }
  return levels;
}

absl::StatusOr<std::vector<LoadLevel>> TraceLevels(
    const BenchOptions& options) {
  auto trace =
      ReadTrace(options.trace, options.requests,
                {.divisor = options.divide_lengths, .bound = ShapeOf(options)});
  if (!trace.ok()) {
    return FieldError("trace", std::string(trace.status().message()));
  }
  ASSIGN_OR_RETURN(const std::vector<double> rates, Rates(options));
  if (rates.empty()) {
    const double rate = MeanRate(*trace);
    return std::vector<LoadLevel>{OpenLevel(rate, *std::move(trace))};
  }
  std::vector<LoadLevel> levels;
  for (const double rate : rates) {
    std::vector<TimedRequest> scaled = *trace;
    ScaleToRate(rate, &scaled);
    levels.push_back(OpenLevel(rate, std::move(scaled)));
  }
  return levels;
}

absl::StatusOr<LoadPlan> MakePlan(const BenchOptions& options) {
  LoadPlan plan;
  if (!options.trace.empty()) {
    ASSIGN_OR_RETURN(plan.levels, TraceLevels(options));
  } else if (!options.rate.empty()) {
    ASSIGN_OR_RETURN(plan.levels, PoissonLevels(options));
  } else {
    ASSIGN_OR_RETURN(plan.levels, ClosedLevels(options));
  }
  for (const std::string& text : options.pids) {
    const auto numbers = ParseTokenIds(text);
    if (!numbers.ok() || numbers->size() != 1) {
      return FieldError("pids", "\"" + text + "\" is no process id");
    }
    plan.pids.push_back(static_cast<pid_t>(numbers->front()));
  }
  return plan;
}

absl::Status CheckAreThere(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) RETURN_IF_ERROR(ReadProcessUsage(pid).status());
  return absl::OkStatus();
}

// Of those that are still there: one that ends in the run costs no report.
std::vector<ProcessUsage> ReadUsagesOfTheLiving(
    const std::vector<pid_t>& pids) {
  std::vector<ProcessUsage> usages;
  for (const pid_t pid : pids) {
    absl::StatusOr<ProcessUsage> usage = ReadProcessUsage(pid);
    if (usage.ok()) usages.push_back(*std::move(usage));
  }
  return usages;
}

std::vector<ProcessUsage> UsagesSince(const std::vector<ProcessUsage>& before,
                                      const Console& console) {
  std::vector<ProcessUsage> usages;
  for (const ProcessUsage& then : before) {
    absl::StatusOr<ProcessUsage> now = ReadProcessUsage(then.pid);
    if (!now.ok()) {
      console.err << "process " << then.pid << " (" << then.name
                  << ") has ended: its CPU time is in no figure from here on\n";
      continue;
    }
    now->cpu_time -= then.cpu_time;
    usages.push_back(*std::move(now));
  }
  return usages;
}

v1::GenerateRequest MakeRequest(const BenchOptions& options,
                                const std::vector<uint32_t>& prompt,
                                uint32_t max_tokens, uint64_t index) {
  v1::GenerateRequest request;
  request.mutable_prompt()->mutable_token_ids()->mutable_ids()->Add(
      prompt.begin(), prompt.end());
  request.mutable_sampling()->set_temperature(
      static_cast<float>(options.temperature));
  request.mutable_sampling()->set_seed(options.seed + index);
  if (options.n) request.mutable_sampling()->set_n(*options.n);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

LoadLoopOptions LoopOptions(const BenchOptions& options,
                            const LoadLevel& level) {
  LoadLoopOptions loop = {.clients = level.clients,
                          .requests = level.num_requests};
  for (const TimedRequest& request : level.timed) {
    loop.send_times.push_back(request.send);
  }
  loop.timeout = options.timeout;
  return loop;
}

// One level of load, from its first request to its last.
BenchLevel RunLevel(const BenchOptions& options, const std::vector<pid_t>& pids,
                    const LoadLevel& load, const LoadLoop::MakeRequest& make,
                    const Console& console) {
  const MonotonicClock clock;
  const auto stub = ConnectToRouter(options.router);
  BenchLevel level = {.limits = options.limits};
  level.clients = load.clients;
  level.rate = load.rate;
  LoadLoop loop(LoopOptions(options, load), stub.get(), make);
  const std::vector<ProcessUsage> before = ReadUsagesOfTheLiving(pids);
  const absl::Duration own_before = OwnCpuTime();
  const absl::Time start = clock.Now();
  loop.Start();
  while (!loop.Wait(kProgressInterval)) {
    console.err << absl::StrFormat("%s: %d of %d requests, %.0f s",
                                   LoadName(level), loop.ended(),
                                   load.num_requests,
                                   absl::ToDoubleSeconds(clock.Now() - start))
                << std::endl;
  }
  level.wall_time = clock.Now() - start;
  level.client_cpu_time = OwnCpuTime() - own_before;
  level.servers = UsagesSince(before, console);
  LoadLoop::Results results = loop.TakeResults();
  level.failed_requests = results.failed;
  level.requests = std::move(results.requests);
  if (results.failed > 0) {
    console.err << "first error: "
                << ExplainRpcError(results.first_error, options.router) << "\n";
  }
  return level;
}

absl::StatusOr<v1::GetModelInfoResponse> GetModelInfo(
    const BenchOptions& options) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       absl::ToChronoNanoseconds(options.timeout));
  v1::GetModelInfoResponse info;
  const grpc::Status status =
      ConnectToRouter(options.router)->GetModelInfo(&context, {}, &info);
  if (!status.ok()) {
    return absl::UnavailableError(ExplainRpcError(status, options.router));
  }
  if (info.vocab_size() <= kFirstPlainToken) {
    return absl::FailedPreconditionError(
        "the model's vocabulary is too small for random prompts");
  }
  return info;
}

absl::StatusOr<std::vector<BenchLevel>> RunLevels(const BenchOptions& options,
                                                  const Console& console) {
  ASSIGN_OR_RETURN(const LoadPlan plan, MakePlan(options));
  RETURN_IF_ERROR(CheckAreThere(plan.pids));
  ASSIGN_OR_RETURN(const v1::GetModelInfoResponse info, GetModelInfo(options));
  std::vector<BenchLevel> levels;
  uint64_t num_requests = 0;
  for (const LoadLevel& load : plan.levels) {
    // Other prompts on each level: none finds the last one's in a cache.
    const uint64_t seed = options.seed * 1'000'003 + levels.size();
    const auto make = [&, first = num_requests](uint32_t index) {
      const TimedRequest request = load.timed.empty()
                                       ? TimedRequest{.shape = ShapeOf(options)}
                                       : load.timed[index];
      return MakeRequest(options,
                         RandomPrompt(request, info.vocab_size(), seed, index),
                         request.shape.max_tokens, first + index);
    };
    levels.push_back(RunLevel(options, plan.pids, load, make, console));
    num_requests += load.num_requests;
  }
  return levels;
}

nlohmann::json ReportJson(const BenchOptions& options,
                          const std::vector<BenchLevel>& levels) {
  nlohmann::json json = {{"prompt_tokens", options.prompt_tokens},
                         {"max_tokens", options.max_tokens},
                         {"temperature", options.temperature},
                         {"seed", options.seed},
                         {"n", options.n.value_or(1)}};
  for (const BenchLevel& level : levels) {
    json["levels"].push_back(LevelJson(level));
  }
  return json;
}

std::string SvgPath(const BenchOptions& options) {
  return options.svg_out.value_or("baton-sweep.svg");
}

bool WriteText(const char* flag, const std::string& path,
               const std::string& text, const Console& console) {
  std::ofstream file(path);
  file << text;
  if (file.flush()) {
    console.err << "wrote " << path << "\n";
    return true;
  }
  console.err << "baton bench: cannot write --" << flag << " " << path << "\n";
  return false;
}

// Before the load, not after it.
absl::Status CheckWritable(const char* flag, const std::string& path) {
  const bool is_new = !std::filesystem::exists(path);
  const bool is_open = std::ofstream(path, std::ios::app).is_open();
  if (!is_open) return FieldError(flag, "cannot write " + path);
  if (is_new) std::filesystem::remove(path);
  return absl::OkStatus();
}

absl::Status RefuseContradictions(const BenchOptions& options) {
  const bool open = !options.rate.empty() || !options.trace.empty();
  if (open && !options.clients.empty()) {
    return FieldError("clients",
                      "contradicts --rate and --trace: give one of them");
  }
  if (options.svg_out && !options.sweep) {
    return FieldError("svg_out", "needs --sweep, which draws it");
  }
  if (options.divide_lengths > 1 && options.trace.empty()) {
    return FieldError("divide_lengths",
                      "needs --trace, whose lengths they are");
  }
  return absl::OkStatus();
}

void AddReportFlags(Flags& flags, BenchOptions* options) {
  flags.Group("Report");
  flags.Add(&options->limits.ttft,
            {.name = "ttft_limit",
             .help = "Goodput counts the requests whose first token comes "
                     "within this time...",
             .min = 0});
  flags.Add(&options->limits.tpot,
            {.name = "tpot_limit",
             .help = "...and the others, on average, this far apart at most.",
             .min = 0});
  flags.Add(&options->pids,
            {.name = "pids",
             .help = "Server processes on this machine whose CPU time and "
                     "memory are told too, until they end."});
  flags.Add(&options->json_out,
            {.name = "json_out", .help = "File for all figures as JSON."});
  flags.Add(&options->sweep,
            {.name = "sweep",
             .help = "Draw the levels, throughput against speed for a user."});
  flags.Add(&options->svg_out,
            {.name = "svg_out",
             .help = "File for the drawing. Absent: baton-sweep.svg."});
}

}  // namespace

void AddBenchFlags(Flags& flags, BenchOptions* options) {
  AddConnectionFlags(flags, &options->router, &options->timeout);
  flags.Group("Load");
  flags.Add(&options->clients,
            {.name = "clients",
             .help = "Numbers of clients, a level each. Absent, and without "
                     "--rate and --trace: 1,16,32."});
  flags.Add(&options->rate,
            {.name = "rate",
             .help = "Requests a second, a level each, at Poisson's times by "
                     "--seed, instead of clients."});
  flags.Add(&options->trace,
            {.name = "trace",
             .help = "File of an Azure (CSV) or Mooncake (JSON lines) trace "
                     "with times and lengths, which the flags below bound; "
                     "--rate stretches its time. Prompts share the prefixes "
                     "that a Mooncake trace names."});
  flags.Add(&options->divide_lengths,
            {.name = "divide_lengths",
             .help = "Of a trace, prompts and outputs are so many times "
                     "shorter.",
             .min = 1,
             .max = 512});
  flags.Add(&options->requests,
            {.name = "requests",
             .help = "Requests of a level; 0: four for each client, 30 "
                     "seconds' worth of a rate, all of a trace.",
             .max = 10'000'000});
  flags.Add(&options->prompt_tokens, {.name = "prompt_tokens",
                                      .help = "Length of each prompt.",
                                      .min = 1,
                                      .max = 1'000'000});
  flags.Add(&options->max_tokens, {.name = "max_tokens",
                                   .help = "Output of each request.",
                                   .min = 1,
                                   .max = 1'000'000});
  flags.Add(&options->temperature,
            {.name = "temperature", .help = "0 is greedy."});
  flags.Add(&options->seed,
            {.name = "seed", .help = "Of prompts and sampling."});
  AddSamplesFlag(flags, &options->n);
  AddReportFlags(flags, options);
}

absl::Status ValidateBench(const BenchOptions& options) {
  RETURN_IF_ERROR(ValidateConnection(options.router));
  RETURN_IF_ERROR(RefuseContradictions(options));
  RETURN_IF_ERROR(MakePlan(options).status());
  if (options.sweep) {
    RETURN_IF_ERROR(CheckWritable("svg_out", SvgPath(options)));
  }
  return options.json_out.empty() ? absl::OkStatus()
                                  : CheckWritable("json_out", options.json_out);
}

int RunBench(const BenchOptions& options, const Console& console) {
  const auto levels = RunLevels(options, console);
  if (!levels.ok()) {
    console.err << "baton bench: " << std::string(levels.status().message())
                << "\n";
    return kExitFailed;
  }
  console.out << ReportTable(*levels);
  bool written = true;
  if (!options.json_out.empty()) {
    written &= WriteText("json_out", options.json_out,
                         ReportJson(options, *levels).dump(1) + "\n", console);
  }
  if (options.sweep) {
    written &= WriteText("svg_out", SvgPath(options),
                         DrawPlots(SweepPlots(*levels)), console);
  }
  if (!written) return kExitFailed;
  for (const BenchLevel& level : *levels) {
    if (level.failed_requests > 0) return kExitFailed;
  }
  return kExitOk;
}

}  // namespace baton
