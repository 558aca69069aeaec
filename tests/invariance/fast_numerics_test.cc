// --numerics=fast, and fast_bf16, keep the promise of exact: a request's tokens
// and log-probabilities are the same however they are computed, since whether a
// row is computed in expanded form depends on its position and on the length of
// the request's original prompt alone.
#include <bit>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "comm/kv_pool.h"
#include "comm/kv_transfer_agent.h"
#include "comm/loopback_transport.h"
#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "engine/llm_engine.h"
#include "engine/model/deepseek_v3_runner.h"
#include "engine/model/numerics.h"
#include "gtest/gtest.h"
#include "kernels/thread_pool.h"
#include "tests/fakes/engine_driver.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/simulated_clock.h"
#include "tests/invariance/token_machine.h"

namespace baton {
namespace {

constexpr char kModel[] = "models/tiny-deepseek-v3";
constexpr uint32_t kVocabSize = 4096;
constexpr uint32_t kPoolBlocks = 256;

struct Setting {
  Numerics numerics = Numerics::kFast;
  CacheDtype cache = CacheDtype::kBf16;
  VectorIsa isa = SupportedVectorIsas().back();
  int threads = 1;
  EngineOptions engine = {.max_running_requests = 1};
  bool split = false;
  bool preempt_before_every_token = false;
};

// An engine with the demo model, reachable for KV transfers.
class Rank {
 public:
  Rank(const Setting& setting, const std::string& address,
       LoopbackNetwork* network, SimulatedClock* clock)
      : threads_({.num_threads = setting.threads}),
        cpu_{setting.isa, &threads_},
        runner_(Load(setting, cpu_)),
        transport_(network->CreateEndpoint(address, {})) {
    const size_t block_bytes = runner_->info().cache.block_bytes();
    auto region = transport_->AllocateRegion(
        KvPool::RegionBytes(kPoolBlocks, block_bytes));
    CHECK_OK(region.status());
    pool_ = std::make_unique<KvPool>(*region, kPoolBlocks, block_bytes);
    runner_->BindKvPool(pool_.get());
    agent_ = std::make_unique<KvTransferAgent>(
        KvTransferAgentOptions{.fingerprint = runner_->info().fingerprint},
        transport_.get(), pool_.get(), clock, [this](KvTransferEvent event) {
          engine_->OnTransferEvent(std::move(event));
        });
    executor_ = std::make_unique<CpuStepExecutor>(
        setting.engine, CpuStepExecutor::Device{.model = runner_.get(),
                                                .pool = pool_.get(),
                                                .stream = &stream_,
                                                .clock = clock,
                                                .cpu = cpu_});
    engine_ = std::make_unique<LLMEngine>(
        setting.engine, EngineEnvironment{.executor = executor_.get(),
                                          .pool = pool_.get(),
                                          .transfer = agent_.get(),
                                          .clock = clock});
  }

  LLMEngine& engine() { return *engine_; }
  void AddTo(EngineDriver* driver) {
    driver->Add(engine_.get(), &stream_);
    driver->Add(agent_.get());
  }

 private:
  static std::unique_ptr<DeepSeekV3Runner> Load(const Setting& setting,
                                                const CpuContext& cpu) {
    const EngineOptions& options = setting.engine;
    auto runner = DeepSeekV3Runner::Load(
        {.folder = kModel,
         .cache_dtype = setting.cache,
         .numerics = setting.numerics,
         .max_rows = static_cast<int>(options.max_rows()),
         .max_logits_rows = static_cast<int>(options.max_logits_rows()),
         .drafter = options.num_draft_tokens > 0},
        cpu);
    CHECK_OK(runner.status());
    return *std::move(runner);
  }

  ThreadPool threads_;
  const CpuContext cpu_;
  const std::unique_ptr<DeepSeekV3Runner> runner_;
  const std::unique_ptr<Transport> transport_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<KvTransferAgent> agent_;
  CpuDeviceStream stream_;
  std::unique_ptr<CpuStepExecutor> executor_;
  std::unique_ptr<LLMEngine> engine_;
};

// One engine, or two of which the first computes prompts for the second.
class Machine {
 public:
  explicit Machine(const Setting& setting)
      : setting_(setting), driver_(&clock_) {
    ranks_.push_back(
        std::make_unique<Rank>(setting, "first", &network_, &clock_));
    if (setting.split) {
      ranks_.push_back(
          std::make_unique<Rank>(setting, "second", &network_, &clock_));
    }
    for (const auto& rank : ranks_) rank->AddTo(&driver_);
  }

  std::vector<GeneratedSequence> Run(
      const std::vector<GenerationRequest>& requests) {
    sinks_ = std::vector<RecordingTokenSink>(requests.size());
    prompt_sinks_ = std::vector<RecordingTokenSink>(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      GenerationRequest request = requests[i];
      if (setting_.split) request.mode = RequestMode::kPrefill;
      CHECK_OK(ranks_[0]->engine().Submit(
          std::move(request), setting_.split ? &prompt_sinks_[i] : &sinks_[i]));
    }
    std::set<size_t> handed_over;
    driver_.set_after_turn([&] {
      for (size_t i = 0; i < requests.size(); ++i) {
        if (prompt_sinks_[i].handle.has_value() &&
            handed_over.insert(i).second) {
          GenerationRequest request = requests[i];
          request.mode = RequestMode::kDecode;
          request.kv_handle = *prompt_sinks_[i].handle;
          CHECK_OK(ranks_[1]->engine().Submit(std::move(request), &sinks_[i]));
        }
        if (setting_.preempt_before_every_token) MaybePreempt(requests[i], i);
      }
    });
    CHECK(driver_.RunUntil([this] { return done(); }, 10'000'000));
    driver_.set_after_turn({});
    std::vector<GeneratedSequence> sequences;
    for (const RecordingTokenSink& sink : sinks_) {
      CHECK_OK(sink.outcome->status);
      sequences.push_back({sink.tokens, {}});
      for (const float logprob : sink.logprobs) {
        sequences.back().logprob_bits.push_back(
            std::bit_cast<uint32_t>(logprob));
      }
    }
    return sequences;
  }

  size_t num_preempted() const { return preempted_.size(); }

 private:
  bool done() const {
    for (const RecordingTokenSink& sink : sinks_) {
      if (!sink.finished()) return false;
    }
    for (const auto& rank : ranks_) {
      if (!rank->engine().idle()) return false;
    }
    return true;
  }

  void MaybePreempt(const GenerationRequest& request, size_t i) {
    const std::pair<size_t, size_t> at = {i, sinks_[i].tokens.size()};
    if (preempted_.contains(at) || sinks_[i].finished()) return;
    if (ranks_.back()->engine().Preempt(request.id, 0)) preempted_.insert(at);
  }

  const Setting setting_;
  SimulatedClock clock_;
  LoopbackNetwork network_;
  EngineDriver driver_;
  std::vector<RecordingTokenSink> sinks_;
  std::vector<RecordingTokenSink> prompt_sinks_;   // With two engines.
  std::set<std::pair<size_t, size_t>> preempted_;  // Request, token index.
  std::vector<std::unique_ptr<Rank>> ranks_;
};

struct Kind {
  const char* name;
  Numerics numerics;
  CacheDtype cache;
};

class FastNumericsTest : public testing::TestWithParam<Kind> {
 protected:
  FastNumericsTest() : requests_(MixedRequests(16, kVocabSize)) {
    setting_.numerics = GetParam().numerics;
    setting_.cache = GetParam().cache;
    expected_ = Machine(setting_).Run(requests_);
    for (const GeneratedSequence& sequence : expected_) {
      num_tokens_ += sequence.token_ids.size();
    }
  }

  // What `setting_` gives is what the simplest way gave.
  void ExpectSame(const std::string& what) {
    Machine machine(setting_);
    const std::vector<GeneratedSequence> sequences = machine.Run(requests_);
    for (size_t i = 0; i < expected_.size(); ++i) {
      EXPECT_TRUE(sequences[i] == expected_[i]) << what << ", request " << i;
    }
    if (setting_.preempt_before_every_token) {
      EXPECT_GE(machine.num_preempted(), setting_.engine.num_draft_tokens == 0
                                             ? num_tokens_ - expected_.size()
                                             : expected_.size())
          << what;
    }
  }

  const std::vector<GenerationRequest> requests_;
  Setting setting_;
  std::vector<GeneratedSequence> expected_;
  size_t num_tokens_ = 0;
};

TEST_P(FastNumericsTest, ChunksOfAnySize) {
  for (const uint32_t chunk : {1, 7, 64, 65}) {
    setting_.engine.max_chunk_tokens = chunk;
    ExpectSame("chunks of " + std::to_string(chunk));
  }
}

TEST_P(FastNumericsTest, AnyBatch) {
  for (const uint32_t batch : {2, 5, 16}) {
    setting_.engine.max_running_requests = batch;
    ExpectSame("batch " + std::to_string(batch));
  }
}

TEST_P(FastNumericsTest, EveryVectorWidthAndTwoThreads) {
  for (const VectorIsa isa : SupportedVectorIsas()) {
    setting_.isa = isa;
    setting_.threads = 3 - setting_.threads;
    ExpectSame(std::string(VectorIsaName(isa)));
  }
}

TEST_P(FastNumericsTest, DepthAndDrafts) {
  setting_.engine.max_running_requests = 8;
  for (const uint32_t depth : {1, 2, 3}) {
    for (const uint32_t drafts : {0, 1, 5}) {
      setting_.engine.pipeline_depth = depth;
      setting_.engine.num_draft_tokens = drafts;
      ExpectSame("depth " + std::to_string(depth) + ", drafts " +
                 std::to_string(drafts));
    }
  }
}

// Generated positions are recomputed in the form that they had.
TEST_P(FastNumericsTest, PreemptionBeforeEveryToken) {
  setting_.preempt_before_every_token = true;
  for (const uint32_t chunk : {7, 512}) {
    for (const uint32_t drafts : {0, 2}) {
      setting_.engine.max_chunk_tokens = chunk;
      setting_.engine.num_draft_tokens = drafts;
      ExpectSame("preempted, chunks of " + std::to_string(chunk) + ", drafts " +
                 std::to_string(drafts));
    }
  }
}

TEST_P(FastNumericsTest, SplitOverTwoEngines) {
  setting_.split = true;
  for (const bool preempted : {false, true}) {
    setting_.preempt_before_every_token = preempted;
    setting_.engine.max_running_requests = preempted ? 5 : 1;
    setting_.engine.max_chunk_tokens = preempted ? 33 : 512;
    ExpectSame(preempted ? "split, preempted" : "split");
  }
}

// As a router resumes it elsewhere, from the tokens that it holds.
TEST_P(FastNumericsTest, ARequestResumedAnywhere) {
  Machine machine(setting_);
  for (size_t held = 1; held < 4; ++held) {
    std::vector<GenerationRequest> rest = requests_;
    for (size_t i = 0; i < rest.size(); ++i) {
      const std::vector<uint32_t>& tokens = expected_[i].token_ids;
      ASSERT_GT(tokens.size(), held);
      rest[i].token_ids.insert(rest[i].token_ids.end(), tokens.begin(),
                               tokens.begin() + static_cast<ptrdiff_t>(held));
    }
    const std::vector<GeneratedSequence> sequences = machine.Run(rest);
    for (size_t i = 0; i < rest.size(); ++i) {
      const auto behind = [held](const std::vector<uint32_t>& values) {
        return std::vector<uint32_t>(
            values.begin() + static_cast<ptrdiff_t>(held), values.end());
      };
      EXPECT_EQ(sequences[i].token_ids, behind(expected_[i].token_ids));
      EXPECT_EQ(sequences[i].logprob_bits, behind(expected_[i].logprob_bits));
    }
  }
}

// Else the tests above would show nothing new.
TEST_P(FastNumericsTest, OtherBitsThanExact) {
  setting_.numerics = Numerics::kExact;
  const std::vector<GeneratedSequence> exact = Machine(setting_).Run(requests_);
  EXPECT_NE(Digest(exact), Digest(expected_));
}

constexpr Kind kKinds[] = {
    {"F32Cache", Numerics::kFast, CacheDtype::kF32},
    {"Bf16Cache", Numerics::kFast, CacheDtype::kBf16},
    {"Bf16DotsAndCache", Numerics::kFastBf16, CacheDtype::kBf16},
};
INSTANTIATE_TEST_SUITE_P(Kinds, FastNumericsTest, testing::ValuesIn(kKinds),
                         [](const auto& test) {
                           return std::string(test.param.name);
                         });

}  // namespace
}  // namespace baton
