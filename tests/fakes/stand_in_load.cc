#include "tests/fakes/stand_in_load.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/logging.h"
#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "kernels/cuda/stand_in_model.h"
#include "tests/fakes/heap_kv_pool.h"
#include "tests/fakes/stand_in_model_runner.h"

namespace baton {

void StandInLoad::Start(LLMEngine* engine, uint32_t concurrent,
                        uint64_t total) {
  engine_ = engine;
  total_ = total;
  for (uint32_t i = 0; i < concurrent; ++i) SubmitNext();
}

uint64_t StandInLoad::CountOthers(
    const std::vector<std::vector<uint32_t>>& expected) const {
  const uint64_t end = std::min(requests_.size(), expected.size());
  uint64_t others = 0;
  for (uint64_t i = 0; i < end; ++i) {
    others += requests_[i].tokens != expected[i];
  }
  return others;
}

void StandInLoad::SubmitNext() {
  if (requests_.size() >= total_) return;
  const uint64_t i = requests_.size();
  Request& request = requests_.emplace_back(this);
  CHECK_OK(engine_->Submit(MakeRequest(i), &request));
}

GenerationRequest StandInLoad::MakeRequest(uint64_t i) const {
  const uint64_t bits = MixBits(i);
  GenerationRequest request;
  request.id = {.router_nonce = 1, .counter = i};
  request.original_prompt_tokens = 1 + bits % options_.prompt_tokens;
  request.token_ids.resize(request.original_prompt_tokens);
  for (size_t j = 0; j < request.token_ids.size(); ++j) {
    request.token_ids[j] = StandInToken(MixBits(bits + j), options_.vocab_size);
  }
  request.max_tokens =
      options_.max_tokens / 2 + (bits >> 32) % (options_.max_tokens + 1);
  request.max_tokens = std::max(request.max_tokens, 1u);
  return request;
}

void StandInLoad::Request::OnTokens(const ScoredTokens& scored) {
  CHECK_EQ(scored.first_index, tokens.size());
  for (const SampledToken& token : scored.tokens) {
    CHECK_EQ(token.logprob, 0.0f);
    tokens.push_back(token.token_id);
  }
}

void StandInLoad::Request::OnFinished(const GenerationOutcome& outcome) {
  CHECK_OK(outcome.status);
  ++load->num_finished_;
  load->SubmitNext();
}

std::vector<std::vector<uint32_t>> StandInTokensOnCpu(
    const StandInLoad::Options& options, uint64_t num_requests) {
  constexpr uint32_t kConcurrent = 16;
  const uint32_t context = options.prompt_tokens + 2 * options.max_tokens;
  const uint32_t blocks = context / CacheSpec::kBlockTokens + 1;
  const EngineOptions engine_options = {.max_running_requests = kConcurrent,
                                        .pipeline_depth = 1};
  StandInModelRunner model(options.vocab_size, context);
  HeapKvPool pool(2 * kConcurrent * blocks, model.info().cache.block_bytes());
  model.BindKvPool(pool.get());
  CpuDeviceStream stream;
  const MonotonicClock clock;
  CpuStepExecutor executor(
      engine_options, {.model = &model, .stream = &stream, .clock = &clock});
  LLMEngine engine(
      engine_options,
      {.executor = &executor, .pool = pool.get(), .clock = &clock});
  StandInLoad load(options);
  load.Start(&engine, kConcurrent, num_requests);
  while (!engine.idle()) {
    engine.Advance();
    stream.Poll();
  }
  CHECK(load.done());
  std::vector<std::vector<uint32_t>> tokens;
  for (uint64_t i = 0; i < num_requests; ++i) {
    tokens.push_back(load.tokens(i));
  }
  return tokens;
}

}  // namespace baton
