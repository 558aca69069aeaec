#include "tests/invariance/token_machine.h"

#include <array>
#include <bit>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <utility>

#include "base/clock.h"
#include "base/logging.h"
#include "comm/kv_pool.h"
#include "comm/kv_transfer_agent.h"
#include "comm/ucx_transport.h"
#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "engine/llm_engine.h"
#include "engine/model/deepseek_v3_runner.h"
#include "engine/token_sink.h"
#include "kernels/thread_pool.h"
#include "server/device_thread.h"

namespace baton {
namespace {

// The last request of a split run waits for all others, on a busy machine.
constexpr absl::Duration kPatience = absl::Minutes(15);
// How long the driver waits for a device that runs on a thread of its own.
constexpr absl::Duration kDeviceWait = absl::Microseconds(200);

EngineOptions MakeEngineOptions(const MachineConfig& config) {
  EngineOptions options;
  options.max_running_requests = config.max_running_requests;
  options.max_chunk_tokens = config.max_chunk_tokens;
  options.pipeline_depth = config.pipeline_depth;
  options.num_draft_tokens = config.num_draft_tokens;
  if (config.adaptive_verification) {
    // Of no machine in particular: the planner corrects it as it goes.
    options.step_curve = {{.rows = 1, .time = absl::Microseconds(500)},
                          {.rows = 8, .time = absl::Milliseconds(1)},
                          {.rows = 384, .time = absl::Milliseconds(40)}};
  }
  return options;
}

std::unique_ptr<DeepSeekV3Runner> LoadRunner(const std::string& folder,
                                             const MachineConfig& config,
                                             const CpuContext& cpu) {
  const EngineOptions options = MakeEngineOptions(config);
  LoadOptions load;
  load.folder = folder;
  load.cache_dtype = config.cache;
  load.numerics = config.numerics;
  load.max_rows = static_cast<int>(options.max_rows());
  load.max_logits_rows = static_cast<int>(options.max_logits_rows());
  load.drafter = config.num_draft_tokens > 0;
  auto runner = DeepSeekV3Runner::Load(load, cpu);
  CHECK_OK(runner.status());
  return *std::move(runner);
}

std::unique_ptr<UcxTransport> MakeTransport(PoolSplit split) {
  UcxTransportOptions options;
  options.mode = split == PoolSplit::kTcp ? UcxMode::kTcp : UcxMode::kShm;
  options.network_devices = "lo";
  auto transport = UcxTransport::Create(options);
  CHECK_OK(transport.status());
  return *std::move(transport);
}

// One process's worth: model, pool, transfer agent, engine.
class Rank {
 public:
  Rank(const std::string& folder, const MachineConfig& config)
      : threads_({.num_threads = config.threads}),
        cpu_{config.isa, &threads_},
        runner_(LoadRunner(folder, config, cpu_)) {
    const size_t block_bytes = runner_->info().cache.block_bytes();
    const size_t region_bytes =
        KvPool::RegionBytes(config.pool_blocks, block_bytes);
    std::byte* region = nullptr;
    if (config.split == PoolSplit::kUnified) {
      // Page-aligned, as a region of the transport is.
      memory_.resize(region_bytes + 4096);
      void* start = memory_.data();
      size_t space = memory_.size();
      region =
          static_cast<std::byte*>(std::align(4096, region_bytes, start, space));
    } else {
      transport_ = MakeTransport(config.split);
      auto allocated = transport_->AllocateRegion(region_bytes);
      CHECK_OK(allocated.status());
      region = *allocated;
    }
    pool_ = std::make_unique<KvPool>(region, config.pool_blocks, block_bytes);
    if (transport_ != nullptr) {
      agent_ = std::make_unique<KvTransferAgent>(
          KvTransferAgentOptions{.fingerprint = runner_->info().fingerprint,
                                 .lease = kPatience,
                                 .import_timeout = kPatience},
          transport_.get(), pool_.get(), &clock_,
          [this](KvTransferEvent event) {
            engine_->OnTransferEvent(std::move(event));
          });
    }
    runner_->BindKvPool(pool_.get());
    const EngineOptions options = MakeEngineOptions(config);
    executor_ = std::make_unique<CpuStepExecutor>(
        options, CpuStepExecutor::Device{.model = runner_.get(),
                                         .pool = pool_.get(),
                                         .stream = &stream_,
                                         .clock = &clock_,
                                         .cpu = cpu_});
    engine_ = std::make_unique<LLMEngine>(
        options, EngineEnvironment{.executor = executor_.get(),
                                   .pool = pool_.get(),
                                   .transfer = agent_.get(),
                                   .clock = &clock_,
                                   .observer = [this](const StepStats& step) {
                                     Count(step);
                                   }});
    if (config.device_thread) {
      device_ = std::make_unique<DeviceThread>(&stream_);
    }
  }

  LLMEngine& engine() { return *engine_; }

  // True if anything happened.
  bool Turn() {
    bool busy = engine_->Advance();
    if (device_ == nullptr) busy |= stream_.Poll();
    if (agent_ != nullptr) busy |= agent_->Poll();
    return busy;
  }

  void AddCountsTo(MachineResult* result) const {
    result->num_preemptions = counts_.num_preemptions;
    result->num_steps = counts_.num_steps;
    result->drafts_verified = counts_.drafts_verified;
    result->drafts_accepted = counts_.drafts_accepted;
  }

 private:
  void Count(const StepStats& step) {
    ++counts_.num_steps;
    counts_.num_preemptions += step.preemptions;
    for (size_t i = 0; i < kMaxDraftTokens; ++i) {
      counts_.drafts_verified[i] += step.drafts_verified[i];
      counts_.drafts_accepted[i] += step.drafts_accepted[i];
    }
  }

  const MonotonicClock clock_;
  MachineResult counts_;
  ThreadPool threads_;
  const CpuContext cpu_;
  const std::unique_ptr<DeepSeekV3Runner> runner_;
  std::vector<std::byte> memory_;
  std::unique_ptr<UcxTransport> transport_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<KvTransferAgent> agent_;
  CpuDeviceStream stream_;
  std::unique_ptr<CpuStepExecutor> executor_;
  std::unique_ptr<LLMEngine> engine_;
  std::unique_ptr<DeviceThread> device_;  // Null: Turn.
};

// Collects one request's tokens; dies on a gap, a repeat or a failure.
class CollectingSink final : public TokenSink {
 public:
  explicit CollectingSink(const GenerationRequest& request,
                          std::function<void(const KvHandle&)> on_handle = {})
      : num_resumed_(request.token_ids.size() - request.original_prompt_tokens),
        on_handle_(std::move(on_handle)) {}

  const GeneratedSequence& sequence() const { return sequence_; }
  size_t num_tokens() const { return sequence_.token_ids.size(); }
  uint32_t computed_tokens() const { return computed_tokens_; }
  bool finished() const { return finished_; }

  void OnKvHandle(const KvHandle& handle) override { on_handle_(handle); }
  void OnProgress(uint32_t computed_tokens) override {
    computed_tokens_ = computed_tokens;
  }
  void OnPromptLogprobs(const ScoredTokens&) override {}
  void OnTokens(const ScoredTokens& scored) override {
    CHECK_EQ(scored.first_index, num_resumed_ + num_tokens());
    for (const SampledToken& token : scored.tokens) {
      sequence_.token_ids.push_back(token.token_id);
      sequence_.logprob_bits.push_back(std::bit_cast<uint32_t>(token.logprob));
    }
  }
  void OnFinished(const GenerationOutcome& outcome) override {
    CHECK_OK(outcome.status);
    finished_ = true;
  }

 private:
  const size_t num_resumed_;
  const std::function<void(const KvHandle&)> on_handle_;
  GeneratedSequence sequence_;
  uint32_t computed_tokens_ = 0;
  bool finished_ = false;
};

// Preempts each request once before each of its tokens, where it is running.
class Preempter {
 public:
  void MaybePreempt(LLMEngine& engine, const RequestId& id, size_t next_index) {
    if (preempted_.contains({id, next_index})) return;
    if (engine.Preempt(id, 0)) preempted_.insert({id, next_index});
  }
  uint32_t num_preempted() const {
    return static_cast<uint32_t>(preempted_.size());
  }

 private:
  std::set<std::pair<RequestId, size_t>> preempted_;
};

bool AllFinished(const std::vector<std::unique_ptr<CollectingSink>>& sinks) {
  for (const auto& sink : sinks) {
    if (!sink->finished()) return false;
  }
  return true;
}

MachineResult RunUnified(Rank& rank, const MachineConfig& config,
                         const std::vector<GenerationRequest>& requests) {
  std::vector<std::unique_ptr<CollectingSink>> sinks;
  for (const GenerationRequest& request : requests) {
    sinks.push_back(std::make_unique<CollectingSink>(request));
    CHECK_OK(rank.engine().Submit(request, sinks.back().get()));
  }
  Preempter preempter;
  while (!AllFinished(sinks) || !rank.engine().idle()) {
    if (!rank.Turn()) rank.engine().WaitForWork(kDeviceWait);
    if (!config.preempt_before_every_token) continue;
    for (size_t i = 0; i < requests.size(); ++i) {
      preempter.MaybePreempt(rank.engine(), requests[i].id,
                             sinks[i]->num_tokens());
    }
  }
  MachineResult result;
  for (const auto& sink : sinks) result.sequences.push_back(sink->sequence());
  rank.AddCountsTo(&result);
  result.num_preempted_indices = preempter.num_preempted();
  return result;
}

MachineResult RunSplit(std::array<Rank*, 2> ranks, const MachineConfig& config,
                       const std::vector<GenerationRequest>& requests) {
  Rank& prefill = *ranks[0];
  Rank& decode = *ranks[1];
  std::vector<std::unique_ptr<CollectingSink>> first_sinks;
  std::vector<std::unique_ptr<CollectingSink>> sinks;
  for (const GenerationRequest& request : requests) {
    sinks.push_back(std::make_unique<CollectingSink>(request));
    CollectingSink* sink = sinks.back().get();
    first_sinks.push_back(std::make_unique<CollectingSink>(
        request, [&decode, &request, sink](const KvHandle& handle) {
          GenerationRequest rest = request;
          rest.mode = RequestMode::kDecode;
          rest.kv_handle = handle;
          CHECK_OK(decode.engine().Submit(std::move(rest), sink));
        }));
    GenerationRequest prompt = request;
    prompt.mode = RequestMode::kPrefill;
    CHECK_OK(
        prefill.engine().Submit(std::move(prompt), first_sinks.back().get()));
  }
  Preempter preempter;
  while (!AllFinished(first_sinks) || !AllFinished(sinks) ||
         !prefill.engine().idle() || !decode.engine().idle()) {
    const bool prefill_busy = prefill.Turn();
    if (!decode.Turn() && !prefill_busy) {
      decode.engine().WaitForWork(kDeviceWait);
    }
    if (!config.preempt_before_every_token) continue;
    for (size_t i = 0; i < requests.size(); ++i) {
      preempter.MaybePreempt(decode.engine(), requests[i].id,
                             sinks[i]->num_tokens());
    }
  }
  MachineResult result;
  for (size_t i = 0; i < sinks.size(); ++i) {
    CHECK_EQ(first_sinks[i]->num_tokens(), 1u);
    CHECK_EQ(first_sinks[i]->sequence().token_ids[0],
             sinks[i]->sequence().token_ids[0]);
    CHECK_EQ(first_sinks[i]->sequence().logprob_bits[0],
             sinks[i]->sequence().logprob_bits[0]);
    result.sequences.push_back(sinks[i]->sequence());
  }
  decode.AddCountsTo(&result);
  result.num_preempted_indices = preempter.num_preempted();
  return result;
}

}  // namespace

std::string MachineConfig::ToString() const {
  constexpr std::array kSplits = {"unified", "split over shm",
                                  "split over tcp"};
  std::ostringstream out;
  out << kSplits[static_cast<size_t>(split)] << ", chunks of "
      << max_chunk_tokens << ", batch " << max_running_requests
      << (preempt_before_every_token ? ", preempted" : "") << ", "
      << VectorIsaName(isa) << ", threads " << threads << ", cache "
      << (cache == CacheDtype::kF32 ? "f32" : "bf16") << ", "
      << NumericsName(numerics) << ", depth " << pipeline_depth
      << (device_thread ? " with a device thread" : "") << ", "
      << (adaptive_verification ? "at most " : "") << num_draft_tokens
      << " drafts, " << pool_blocks << " blocks";
  return out.str();
}

MachineResult RunRequests(const std::string& model_folder,
                          const MachineConfig& config,
                          const std::vector<GenerationRequest>& requests) {
  Rank first(model_folder, config);
  if (config.split == PoolSplit::kUnified) {
    return RunUnified(first, config, requests);
  }
  Rank second(model_folder, config);
  return RunSplit({&first, &second}, config, requests);
}

std::vector<GenerationRequest> MixedRequests(int count, uint32_t vocab_size) {
  std::mt19937_64 random(20261129);  // Its output is fixed by the standard.
  constexpr std::array<uint32_t, 8> kLengths = {1, 5, 63, 64, 65, 20, 128, 200};
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < count; ++i) {
    GenerationRequest request;
    request.id = {.router_nonce = 1, .counter = static_cast<uint64_t>(i)};
    const uint32_t length = i < 8 ? kLengths[i] : 1 + random() % 90;
    for (uint32_t t = 0; t < length; ++t) {
      request.token_ids.push_back(static_cast<uint32_t>(random() % vocab_size));
    }
    request.original_prompt_tokens = length;
    request.max_tokens = 4 + random() % 9;
    if (i % 2 == 0) {
      request.sampling.temperature = 0;
    } else {
      request.sampling = {
          .temperature = 0.5f + 0.25f * static_cast<float>(random() % 5),
          .top_p = i % 4 == 1 ? 1.0f : 0.9f,
          .min_p = i % 6 == 1 ? 0.02f : 0.0f,
          .top_k = i % 8 == 3 ? 40u : 0u,
          .seed = random()};
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

size_t NumTokens(const std::vector<GeneratedSequence>& sequences) {
  size_t total = 0;
  for (const GeneratedSequence& sequence : sequences) {
    total += sequence.token_ids.size();
  }
  return total;
}

uint64_t Digest(const std::vector<GeneratedSequence>& sequences) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](uint32_t word) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ ((word >> shift) & 0xff)) * 0x100000001b3;
    }
  };
  for (const GeneratedSequence& sequence : sequences) {
    add(static_cast<uint32_t>(sequence.token_ids.size()));
    for (const uint32_t id : sequence.token_ids) add(id);
    for (const uint32_t bits : sequence.logprob_bits) add(bits);
  }
  return hash;
}

}  // namespace baton
