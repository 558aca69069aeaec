#include "tests/invariance/token_machine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <tuple>
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
  options.prefix_cache = config.prefix_cache;
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
  uint64_t hit_tokens() const {
    return engine_->load().prefix_cache.hit_tokens;
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

uint32_t LogprobBits(const SampledToken& token) {
  return std::bit_cast<uint32_t>(token.logprob);
}

void AddTop(std::span<const SampledToken> top, std::vector<uint32_t>* to) {
  to->push_back(static_cast<uint32_t>(top.size()));
  for (const SampledToken& token : top) {
    to->push_back(token.token_id);
    to->push_back(LogprobBits(token));
  }
}

// Collects what one sample is told; dies on a gap, a repeat or a failure.
class CollectingSink final : public TokenSink {
 public:
  CollectingSink(const GenerationRequest& request, uint32_t sample_index,
                 std::function<void(const KvHandle&)> on_handle = {})
      : id_(request.id),
        sample_index_(sample_index),
        num_resumed_(request.token_ids.size() - request.original_prompt_tokens),
        next_of_prompt_(std::max(request.prompt_logprobs_from.value_or(1), 1u)),
        on_handle_(std::move(on_handle)) {}

  const RequestId& id() const { return id_; }
  uint32_t sample_index() const { return sample_index_; }
  const GeneratedSequence& sequence() const { return sequence_; }
  size_t num_tokens() const { return sequence_.token_ids.size(); }
  uint32_t computed_tokens() const { return computed_tokens_; }
  bool finished() const { return finished_; }

  void OnKvHandle(const KvHandle& handle) override { on_handle_(handle); }
  void OnProgress(uint32_t computed_tokens) override {
    computed_tokens_ = computed_tokens;
  }
  void OnPromptLogprobs(const ScoredTokens& scored) override {
    CHECK_EQ(num_tokens(), 0u);
    CHECK_EQ(scored.first_index, next_of_prompt_);
    next_of_prompt_ += static_cast<uint32_t>(scored.tokens.size());
    for (size_t i = 0; i < scored.tokens.size(); ++i) {
      sequence_.prompt.push_back(scored.tokens[i].token_id);
      sequence_.prompt.push_back(LogprobBits(scored.tokens[i]));
      AddTop(scored.TopOf(i), &sequence_.prompt);
    }
  }
  void OnTokens(const ScoredTokens& scored) override {
    CHECK_EQ(scored.first_index, num_resumed_ + num_tokens());
    for (size_t i = 0; i < scored.tokens.size(); ++i) {
      sequence_.token_ids.push_back(scored.tokens[i].token_id);
      sequence_.logprob_bits.push_back(LogprobBits(scored.tokens[i]));
      if (scored.num_top > 0) AddTop(scored.TopOf(i), &sequence_.top);
    }
  }
  void OnFinished(const GenerationOutcome& outcome) override {
    CHECK_OK(outcome.status);
    finished_ = true;
  }

 private:
  const RequestId id_;
  const uint32_t sample_index_;
  const size_t num_resumed_;
  uint32_t next_of_prompt_;
  const std::function<void(const KvHandle&)> on_handle_;
  GeneratedSequence sequence_;
  uint32_t computed_tokens_ = 0;
  bool finished_ = false;
};

using Sinks = std::vector<std::unique_ptr<CollectingSink>>;

// A sink for each of the request's samples.
std::vector<TokenSink*> AddSinks(const GenerationRequest& request,
                                 Sinks* sinks) {
  std::vector<TokenSink*> added;
  for (uint32_t i = 0; i < request.num_samples; ++i) {
    sinks->push_back(
        std::make_unique<CollectingSink>(request, request.sample_index + i));
    added.push_back(sinks->back().get());
  }
  return added;
}

bool AllFinished(const Sinks& sinks) {
  return std::ranges::all_of(sinks,
                             [](const auto& sink) { return sink->finished(); });
}

// Preempts each sample once before each of its tokens, where it is running.
class Preempter {
 public:
  void PreemptNew(LLMEngine& engine, const Sinks& sinks) {
    for (const auto& sink : sinks) {
      const auto key =
          std::tuple(sink->id(), sink->sample_index(), sink->num_tokens());
      if (preempted_.contains(key)) continue;
      if (engine.Preempt(sink->id(), sink->sample_index())) {
        preempted_.insert(key);
      }
    }
  }
  uint32_t num_preempted() const {
    return static_cast<uint32_t>(preempted_.size());
  }

 private:
  std::set<std::tuple<RequestId, uint32_t, size_t>> preempted_;
};

MachineResult RunUnified(Rank& rank, const MachineConfig& config,
                         const std::vector<GenerationRequest>& requests) {
  Sinks sinks;
  for (const GenerationRequest& request : requests) {
    CHECK_OK(rank.engine().Submit(request, AddSinks(request, &sinks)));
  }
  Preempter preempter;
  while (!AllFinished(sinks) || !rank.engine().idle()) {
    if (!rank.Turn()) rank.engine().WaitForWork(kDeviceWait);
    if (config.preempt_before_every_token) {
      preempter.PreemptNew(rank.engine(), sinks);
    }
  }
  MachineResult result;
  for (const auto& sink : sinks) result.sequences.push_back(sink->sequence());
  rank.AddCountsTo(&result);
  result.hit_tokens = {rank.hit_tokens()};
  result.num_preempted_indices = preempter.num_preempted();
  return result;
}

// What the prefill engine told of a request is what the decode engine told
// first, and it alone told of the prompt.
GeneratedSequence JoinFirst(const GeneratedSequence& prefilled,
                            GeneratedSequence decoded) {
  CHECK_EQ(prefilled.token_ids.size(), 1u);
  CHECK_EQ(prefilled.token_ids[0], decoded.token_ids[0]);
  CHECK_EQ(prefilled.logprob_bits[0], decoded.logprob_bits[0]);
  CHECK(std::ranges::equal(prefilled.top,
                           std::span(decoded.top).first(prefilled.top.size())));
  CHECK(decoded.prompt.empty());
  decoded.prompt = prefilled.prompt;
  return decoded;
}

MachineResult RunSplit(std::array<Rank*, 2> ranks, const MachineConfig& config,
                       const std::vector<GenerationRequest>& requests) {
  Rank& prefill = *ranks[0];
  Rank& decode = *ranks[1];
  Sinks first_sinks;
  Sinks sinks;
  for (const GenerationRequest& request : requests) {
    const auto on_handle = [&decode, &request,
                            to = AddSinks(request, &sinks)](const KvHandle& h) {
      GenerationRequest rest = request;
      rest.mode = RequestMode::kDecode;
      rest.kv_handle = h;
      CHECK_OK(decode.engine().Submit(std::move(rest), to));
    };
    first_sinks.push_back(std::make_unique<CollectingSink>(
        request, request.sample_index, on_handle));
    GenerationRequest prompt = request;
    prompt.mode = RequestMode::kPrefill;
    prompt.num_samples = 1;
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
    if (config.preempt_before_every_token) {
      preempter.PreemptNew(decode.engine(), sinks);
    }
  }
  MachineResult result;
  for (const auto& sink : sinks) result.sequences.push_back(sink->sequence());
  size_t first = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    GeneratedSequence& sequence = result.sequences[first];
    sequence = JoinFirst(first_sinks[i]->sequence(), std::move(sequence));
    first += requests[i].num_samples;
  }
  decode.AddCountsTo(&result);
  result.hit_tokens = {prefill.hit_tokens(), decode.hit_tokens()};
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
      << (device_thread ? " with a device thread" : "")
      << (prefix_cache ? " and a prefix cache" : "") << ", "
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

std::vector<GenerationRequest> SamplesAlone(
    const std::vector<GenerationRequest>& requests) {
  std::vector<GenerationRequest> samples;
  for (const GenerationRequest& request : requests) {
    for (uint32_t i = 0; i < request.num_samples; ++i) {
      GenerationRequest& sample = samples.emplace_back(request);
      sample.num_samples = 1;
      sample.sample_index += i;
      if (i > 0) sample.prompt_logprobs_from.reset();
    }
  }
  return samples;
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
    // Nothing where nothing was asked for.
    for (const auto* words : {&sequence.top, &sequence.prompt}) {
      if (words->empty()) continue;
      add(static_cast<uint32_t>(words->size()));
      for (const uint32_t word : *words) add(word);
    }
  }
  return hash;
}

}  // namespace baton
