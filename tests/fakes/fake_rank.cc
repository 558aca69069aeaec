#include "tests/fakes/fake_rank.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/logging.h"
#include "comm/kv_pool.h"
#include "kernels/cpu_context.h"
#include "kernels/sample.h"
#include "tests/fakes/heap_kv_pool.h"

namespace baton {
namespace {

// All widths give the same bits.
CpuContext WidestVectors() { return {.isa = SupportedVectorIsas().back()}; }

}  // namespace

FakeRank::FakeRank(const Options& options, SimulatedClock* clock,
                   std::unique_ptr<Transport> transport)
    : model_([&options] {
        FakeModelRunner::Options model = options.model;
        model.max_rows = static_cast<int>(options.engine.max_rows());
        model.max_logits_rows =
            static_cast<int>(options.engine.max_logits_rows());
        model.drafter = options.engine.num_draft_tokens > 0;
        return model;
      }()),
      stream_(clock, options.task_time),
      transport_(std::move(transport)),
      pool_(MakePool(options.num_blocks)),
      executor_(options.engine, {.model = &model_,
                                 .pool = pool_,
                                 .stream = &stream_,
                                 .clock = clock,
                                 .cpu = WidestVectors()}) {
  model_.BindKvPool(pool_);
  if (transport_ != nullptr) {
    KvTransferAgentOptions transfer = options.transfer;
    transfer.fingerprint = model_.info().fingerprint;
    agent_ = std::make_unique<KvTransferAgent>(
        transfer, transport_.get(), pool_, clock,
        [this](KvTransferEvent event) {
          engine_->OnTransferEvent(std::move(event));
        });
  }
  engine_ = std::make_unique<LLMEngine>(
      options.engine,
      EngineEnvironment{.executor = &executor_,
                        .pool = pool_,
                        .transfer = agent_.get(),
                        .clock = clock,
                        .observer = [this](const StepStats& stats) {
                          steps_.push_back(stats);
                        }});
}

FakeRank::~FakeRank() = default;

KvPool* FakeRank::MakePool(uint32_t num_blocks) {
  const size_t block_bytes = model_.info().cache.block_bytes();
  const size_t bytes = KvPool::RegionBytes(num_blocks, block_bytes);
  if (transport_ != nullptr) {
    shared_pool_ = std::make_unique<KvPool>(
        transport_->AllocateRegion(bytes).value(), num_blocks, block_bytes);
    return shared_pool_.get();
  }
  heap_pool_ = std::make_unique<HeapKvPool>(num_blocks, block_bytes, 0xee);
  return heap_pool_->get();
}

void FakeRank::AddTo(EngineDriver* driver) {
  driver->Add(engine_.get(), &stream_);
  if (agent_ != nullptr) driver->Add(agent_.get());
}

GenerationRequest MakeRequest(uint64_t counter, uint32_t prompt_tokens,
                              uint32_t max_tokens) {
  GenerationRequest request;
  request.id = {.router_nonce = 7, .counter = counter};
  for (uint32_t i = 0; i < prompt_tokens; ++i) {
    request.token_ids.push_back(
        static_cast<uint32_t>((counter * 31 + i * i + i) % 61));
  }
  request.original_prompt_tokens = prompt_tokens;
  request.sampling.temperature = counter % 2 == 0 ? 0 : 0.8f;
  request.sampling.seed = counter * 1000003;
  request.max_tokens = max_tokens;
  return request;
}

ExpectedTokens ExpectedOf(const FakeModelRunner::Options& options,
                          const GenerationRequest& request) {
  FakeModelRunner model(options);
  const uint32_t end =
      std::min(request.original_prompt_tokens + request.max_tokens,
               options.max_context_tokens);
  std::vector<uint32_t> blocks(end / CacheSpec::kBlockTokens + 1);
  std::iota(blocks.begin(), blocks.end(), 0u);
  const uint32_t num_blocks = static_cast<uint32_t>(blocks.size());
  HeapKvPool pool(num_blocks, model.info().cache.block_bytes());
  model.BindKvPool(pool.get());

  ExpectedTokens expected;
  std::vector<uint32_t> tokens = request.token_ids;
  std::vector<float> logits(options.vocab_size);
  const int32_t logits_row = 0;
  const int vocab = static_cast<int>(options.vocab_size);
  const CpuContext cpu = WidestVectors();
  for (int32_t position = 0; tokens.size() < end; ++position) {
    const SequenceRows rows = {0, 1, blocks.data()};
    model.Forward({.token_ids = {&tokens[position], 1},
                   .positions = {&position, 1},
                   .sequences = {&rows, 1},
                   .logits_rows = {&logits_row, 1}},
                  {.logits = Dense(logits.data(), 1, vocab)});
    if (position + 1u < tokens.size()) continue;
    if (!RowIsSampleable(Dense<const float>(logits.data(), 1, vocab), 0)) {
      expected.sampleable = false;
      break;
    }
    const SampleParams params = {.temperature = request.sampling.temperature,
                                 .top_p = request.sampling.top_p,
                                 .min_p = request.sampling.min_p,
                                 .top_k = request.sampling.top_k,
                                 .seed = request.sampling.seed,
                                 .sample_index = request.sample_index,
                                 .position = tokens.size()};
    SampledToken drawn;
    Sample(cpu, Dense<const float>(logits.data(), 1, vocab), {&params, 1},
           {&drawn, 1});
    tokens.push_back(drawn.token_id);
    expected.tokens.push_back(drawn.token_id);
    expected.logprobs.push_back(drawn.logprob);
    if (std::find(request.stop_token_ids.begin(), request.stop_token_ids.end(),
                  drawn.token_id) != request.stop_token_ids.end()) {
      break;
    }
  }
  return expected;
}

}  // namespace baton
