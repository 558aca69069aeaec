#include "server/cli/bench.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <fstream>
#include <random>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "server/cli/bench_report.h"
#include "server/cli/closed_loop.h"
#include "server/cli/generation_stream.h"
#include "server/cli/process_cpu.h"
#include "server/cli/rpc_error.h"

namespace baton {

const char kBenchDescription[] =
    "Measures a router under load.\n"
    "Each client sends its next request when its last one has ended. Prompts "
    "are random\ntoken ids; every request runs to --max_tokens.\n"
    "  TTFT  first token minus send\n"
    "  ITL   the gaps between successive token arrivals; tokens of one message "
    "have gaps of 0\n"
    "  TPOT  (E2E - TTFT) / (output tokens - 1)\n"
    "  E2E   last token minus send\n"
    "Percentiles are nearest ranks over all requests of a level, of ITL over "
    "all gaps.";

namespace {

// Low ids are special tokens in the families served.
constexpr uint32_t kFirstPlainToken = 16;
constexpr absl::Duration kProgressInterval = absl::Seconds(1);

struct LoadPlan {
  std::vector<uint32_t> clients;
  std::vector<pid_t> pids;
};

absl::StatusOr<LoadPlan> MakePlan(const BenchOptions& options) {
  LoadPlan plan;
  for (const std::string& text : options.clients) {
    const auto numbers = ParseTokenIds(text);
    if (!numbers.ok() || numbers->size() != 1 || numbers->front() == 0 ||
        numbers->front() > 4096) {
      return FieldError("clients",
                        "\"" + text + "\" is no number of clients, 1 to 4096");
    }
    plan.clients.push_back(numbers->front());
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

absl::StatusOr<std::vector<ProcessUsage>> ReadUsages(
    const std::vector<pid_t>& pids) {
  std::vector<ProcessUsage> usages;
  for (const pid_t pid : pids) {
    ASSIGN_OR_RETURN(ProcessUsage usage, ReadProcessUsage(pid));
    usages.push_back(std::move(usage));
  }
  return usages;
}

v1::GenerateRequest MakeRequest(const BenchOptions& options,
                                uint32_t vocab_size, uint64_t index) {
  v1::GenerateRequest request;
  std::mt19937_64 random(options.seed * 1'000'003 + index);
  std::uniform_int_distribution<uint32_t> draw(kFirstPlainToken,
                                               vocab_size - 1);
  auto& ids = *request.mutable_prompt()->mutable_token_ids()->mutable_ids();
  ids.Reserve(static_cast<int>(options.prompt_tokens));
  for (uint32_t i = 0; i < options.prompt_tokens; ++i) ids.Add(draw(random));
  request.mutable_sampling()->set_temperature(
      static_cast<float>(options.temperature));
  request.mutable_sampling()->set_seed(options.seed + index);
  request.mutable_stopping()->set_max_tokens(options.max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

// One level of concurrency, from its first request to its last.
absl::StatusOr<BenchLevel> RunLevel(const BenchOptions& options,
                                    const LoadPlan& plan, uint32_t clients,
                                    const ClosedLoop::MakeRequest& make,
                                    const Console& console) {
  const MonotonicClock clock;
  const auto stub = ConnectToRouter(options.router);
  const uint32_t requests =
      options.requests > 0 ? options.requests : 4 * clients;
  ClosedLoop loop(
      {.clients = clients, .requests = requests, .timeout = options.timeout},
      stub.get(), make);
  ASSIGN_OR_RETURN(const std::vector<ProcessUsage> before,
                   ReadUsages(plan.pids));
  const absl::Duration own_before = OwnCpuTime();
  const absl::Time start = clock.Now();
  loop.Start();
  while (!loop.Wait(kProgressInterval)) {
    console.err << absl::StrFormat("%d clients: %d of %d requests, %.0f s",
                                   clients, loop.ended(), requests,
                                   absl::ToDoubleSeconds(clock.Now() - start))
                << std::endl;
  }
  BenchLevel level;
  level.clients = clients;
  level.wall_time = clock.Now() - start;
  level.client_cpu_time = OwnCpuTime() - own_before;
  ASSIGN_OR_RETURN(level.servers, ReadUsages(plan.pids));
  for (size_t i = 0; i < before.size(); ++i) {
    level.servers[i].cpu_time -= before[i].cpu_time;
  }
  ClosedLoop::Results results = loop.TakeResults();
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
  ASSIGN_OR_RETURN(const v1::GetModelInfoResponse info, GetModelInfo(options));
  std::vector<BenchLevel> levels;
  for (const uint32_t clients : plan.clients) {
    // Other prompts on each level: none finds the last one's in a cache.
    const uint64_t offset = uint64_t{clients} << 32;
    ASSIGN_OR_RETURN(BenchLevel level,
                     RunLevel(
                         options, plan, clients,
                         [&options, &info, offset](uint32_t index) {
                           return MakeRequest(options, info.vocab_size(),
                                              offset + index);
                         },
                         console));
    levels.push_back(std::move(level));
  }
  return levels;
}

nlohmann::json ReportJson(const BenchOptions& options,
                          const std::vector<BenchLevel>& levels) {
  nlohmann::json json = {{"prompt_tokens", options.prompt_tokens},
                         {"max_tokens", options.max_tokens},
                         {"temperature", options.temperature},
                         {"seed", options.seed}};
  for (const BenchLevel& level : levels) {
    json["levels"].push_back(LevelJson(level));
  }
  return json;
}

}  // namespace

void AddBenchFlags(Flags& flags, BenchOptions* options) {
  AddConnectionFlags(flags, &options->router, &options->timeout);
  flags.Group("Load");
  flags.Add(&options->clients,
            {.name = "clients",
             .help = "Numbers of clients, a level each: 1,16,32."});
  flags.Add(&options->requests,
            {.name = "requests",
             .help = "Requests of a level; 0: four for each client.",
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
  flags.Group("Report");
  flags.Add(&options->pids,
            {.name = "pids",
             .help = "Server processes on this machine whose CPU time and "
                     "memory are told too."});
  flags.Add(&options->json_out,
            {.name = "json_out", .help = "File for all figures as JSON."});
}

absl::Status ValidateBench(const BenchOptions& options) {
  return MakePlan(options).status();
}

int RunBench(const BenchOptions& options, const Console& console) {
  const auto levels = RunLevels(options, console);
  if (!levels.ok()) {
    console.err << "baton bench: " << std::string(levels.status().message())
                << "\n";
    return kExitFailed;
  }
  console.out << ReportTable(*levels);
  if (!options.json_out.empty()) {
    std::ofstream file(options.json_out);
    file << ReportJson(options, *levels).dump(1) << "\n";
    if (!file.flush()) {
      console.err << "baton bench: cannot write --json_out " << options.json_out
                  << "\n";
      return kExitFailed;
    }
  }
  for (const BenchLevel& level : *levels) {
    if (level.failed_requests > 0) return kExitFailed;
  }
  return kExitOk;
}

}  // namespace baton
