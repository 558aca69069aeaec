#include "tests/fakes/fake_rank.h"

#include <algorithm>
#include <numeric>
#include <span>
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
      EngineEnvironment{
          .executor = &executor_,
          .pool = pool_,
          .transfer = agent_.get(),
          .clock = clock,
          .observer =
              [this](const StepStats& stats) { steps_.push_back(stats); },
          .abort_observer =
              [this](const AbortStats& stats) { aborts_.push_back(stats); }});
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
  SamplingParams& sampling = request.sampling;
  sampling.temperature = counter % 2 == 0 ? 0 : 0.8f;
  sampling.seed = counter * 1000003;
  if (counter % 3 == 1) sampling.repetition_penalty = 1.25f;
  if (counter % 4 == 1) sampling.presence_penalty = 0.5f;
  if (counter % 5 < 2) sampling.frequency_penalty = 0.25f;
  if (counter % 3 == 2) sampling.logit_bias = {{7, 1.5f}, {2, -4}, {11, -100}};
  sampling.num_top_logprobs = static_cast<uint32_t>(counter % 7);
  sampling.logprobs_after_truncation = counter % 6 == 5;
  if (counter % 4 == 3) sampling.top_k = 5;
  if (counter % 8 == 6) {
    request.prompt_logprobs_from =
        static_cast<uint32_t>(counter * 7 % prompt_tokens);
  }
  request.max_tokens = max_tokens;
  return request;
}

namespace {

// What one token after the other is drawn with, by the request's words alone.
class ExpectedDraw {
 public:
  ExpectedDraw(uint32_t vocab_size, const GenerationRequest& request)
      : request_(request), counts_(vocab_size) {
    for (uint32_t i = 0; i < request.token_ids.size(); ++i) {
      uint32_t& count = counts_[request.token_ids[i]];
      if (i < request.original_prompt_tokens) {
        count |= kPromptTokenBit;
      } else {
        ++count;
      }
    }
  }

  // The token at `position`, with its alternatives in *top.
  SampledToken Draw(uint32_t position, MatrixView<const float> logits,
                    std::vector<SampledToken>* top) {
    const SamplingParams& sampling = request_.sampling;
    SampleParams params = {
        .temperature = sampling.temperature,
        .top_p = sampling.top_p,
        .min_p = sampling.min_p,
        .top_k = sampling.top_k,
        .seed = sampling.seed,
        .sample_index = request_.sample_index,
        .position = position,
        .repetition_penalty = sampling.repetition_penalty,
        .presence_penalty = sampling.presence_penalty,
        .frequency_penalty = sampling.frequency_penalty,
        .token_counts = counts_.data(),
        .logit_bias = sampling.logit_bias,
        .num_top_logprobs = sampling.num_top_logprobs,
        .logprobs_after_truncation = sampling.logprobs_after_truncation};
    if (position - request_.original_prompt_tokens < request_.min_tokens) {
      params.forbidden = request_.stop_token_ids;
    }
    SampledToken drawn;
    top->resize(kMaxTopLogprobs);
    Sample(cpu_, logits, {&params, 1}, {&drawn, 1}, *top);
    ++counts_[drawn.token_id];
    return drawn;
  }

 private:
  const CpuContext cpu_ = WidestVectors();
  const GenerationRequest& request_;
  std::vector<uint32_t> counts_;
};

std::vector<std::pair<uint32_t, float>> AlternativesOf(
    std::span<const SampledToken> top, uint32_t num_top) {
  std::vector<std::pair<uint32_t, float>> alternatives;
  for (const SampledToken& token : top.first(num_top)) {
    if (token.token_id == kNoToken) break;
    alternatives.emplace_back(token.token_id, token.logprob);
  }
  return alternatives;
}

// Prompt token `id`, whose place the logits are of.
void AddPromptScore(uint32_t id, MatrixView<const float> logits,
                    uint32_t num_top, ExpectedTokens* expected) {
  const ScoreParams params = {.token_id = id, .num_top_logprobs = num_top};
  SampledToken score;
  std::vector<SampledToken> top(kMaxTopLogprobs);
  ScoreTokens(WidestVectors(), logits, {&params, 1}, {&score, 1}, top);
  expected->prompt_logprobs.push_back(score.logprob);
  expected->prompt_top.push_back(AlternativesOf(top, num_top));
}

}  // namespace

ExpectedTokens ExpectedOf(const FakeModelRunner::Options& options,
                          const GenerationRequest& request) {
  FakeModelRunner model(options);
  const uint32_t end = static_cast<uint32_t>(std::min<uint64_t>(
      uint64_t{request.original_prompt_tokens} + request.max_tokens,
      options.max_context_tokens));
  std::vector<uint32_t> blocks(end / CacheSpec::kBlockTokens + 1);
  std::iota(blocks.begin(), blocks.end(), 0u);
  const uint32_t num_blocks = static_cast<uint32_t>(blocks.size());
  HeapKvPool pool(num_blocks, model.info().cache.block_bytes());
  model.BindKvPool(pool.get());

  ExpectedTokens expected;
  std::vector<uint32_t> tokens = request.token_ids;
  std::vector<float> logits(options.vocab_size);
  ExpectedDraw draw(options.vocab_size, request);
  std::vector<SampledToken> top;
  const uint32_t num_top = request.sampling.num_top_logprobs;
  const uint32_t first_scored =
      request.prompt_logprobs_from.value_or(request.original_prompt_tokens);
  const int32_t logits_row = 0;
  const int vocab = static_cast<int>(options.vocab_size);
  for (int32_t position = 0; tokens.size() < end; ++position) {
    const SequenceRows rows = {
        0, 1, blocks.data(),
        static_cast<int32_t>(request.original_prompt_tokens)};
    model.Forward({.token_ids = {&tokens[position], 1},
                   .positions = {&position, 1},
                   .sequences = {&rows, 1},
                   .logits_rows = {&logits_row, 1}},
                  {.logits = Dense(logits.data(), 1, vocab)});
    const uint32_t next = position + 1;
    const bool scores =
        next >= first_scored && next < request.original_prompt_tokens;
    if (!scores && next < tokens.size()) continue;
    if (!RowIsSampleable(Dense<const float>(logits.data(), 1, vocab), 0)) {
      expected.sampleable = false;
      break;
    }
    if (scores) {
      AddPromptScore(tokens[next], Dense<const float>(logits.data(), 1, vocab),
                     num_top, &expected);
      continue;
    }
    const SampledToken drawn =
        draw.Draw(static_cast<uint32_t>(tokens.size()),
                  Dense<const float>(logits.data(), 1, vocab), &top);
    tokens.push_back(drawn.token_id);
    expected.tokens.push_back(drawn.token_id);
    expected.logprobs.push_back(drawn.logprob);
    expected.top.push_back(AlternativesOf(top, num_top));
    if (std::find(request.stop_token_ids.begin(), request.stop_token_ids.end(),
                  drawn.token_id) != request.stop_token_ids.end()) {
      break;
    }
  }
  return expected;
}

}  // namespace baton
