#include "tests/simulation/system/system_request.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "server/router/attempt.h"
#include "tests/simulation/system/expected_answer.h"

namespace baton {
namespace {

// Often at a block's edge.
uint32_t PromptLength(const SystemRequestOptions& options, Dice* dice) {
  uint32_t length = dice->Between(1, options.max_prompt_tokens);
  constexpr uint32_t kBlock = kShapeBlockTokens;
  if (dice->OneIn(4)) {
    length = (length + kBlock - 1) / kBlock * kBlock - 1 + dice->Between(0, 2);
  }
  if (dice->OneIn(3)) length = dice->Between(1, 8);
  return std::clamp(length, 1u, options.max_prompt_tokens);
}

SamplingPlan RandomSampling(uint32_t vocab_size, Dice* dice) {
  constexpr std::array<float, 4> kTemperatures = {0, 0.5f, 1, 2};
  SamplingPlan sampling = {
      .temperature = kTemperatures[dice->Between(0, 3)],
      .top_p = dice->OneIn(2) ? 1 : 0.9f,
      .min_p = dice->OneIn(2) ? 0 : 0.02f,
      .top_k = dice->OneIn(2) ? 0 : dice->Between(1, vocab_size),
      .seed = dice->Bits()};
  if (dice->OneIn(3)) sampling.repetition_penalty = 1.25f;
  if (dice->OneIn(4)) sampling.presence_penalty = 0.5f;
  if (dice->OneIn(4)) sampling.frequency_penalty = 0.25f;
  if (dice->OneIn(4)) sampling.logit_bias = {{7, 1.5f}, {2, -4}};
  return sampling;
}

v1::WorkerRequest ToWorker(const GenerationPlan& plan, uint32_t sample_index) {
  const Attempt attempt(0, {.first_sample = sample_index,
                            .num_samples = 1,
                            .prompt_from = plan.prompt_logprobs_from});
  return MakeWorkerRequest(plan, attempt, {});
}

std::string_view TextOf(const Tokenizer& tokenizer, uint32_t id) {
  return tokenizer.IsSpecial(id) ? std::string_view()
                                 : tokenizer.TokenBytes(id);
}

bool IsStopToken(const GenerationPlan& plan, uint32_t id) {
  return std::find(plan.stop_token_ids.begin(), plan.stop_token_ids.end(),
                   id) != plan.stop_token_ids.end();
}

// What a client sees of these tokens: cut at the first stop string.
ExpectedSample Seen(const GenerationPlan& plan, const Tokenizer& tokenizer,
                    const ExpectedAnswer& whole) {
  ExpectedSample seen;
  seen.reason = v1::FINISH_REASON_LENGTH;
  for (size_t i = 0; i < whole.tokens.size(); ++i) {
    seen.tokens.push_back(whole.tokens[i]);
    seen.logprobs.push_back(whole.logprobs[i]);
    if (IsStopToken(plan, whole.tokens[i])) {
      seen.reason = v1::FINISH_REASON_STOP_TOKEN;
      break;
    }
    seen.text += TextOf(tokenizer, whole.tokens[i]);
    if (plan.stop_strings.empty()) continue;
    const size_t match = seen.text.find(plan.stop_strings.front());
    if (match == std::string::npos) continue;
    seen.text.resize(match);
    seen.reason = v1::FINISH_REASON_STOP_STRING;
    break;
  }
  return seen;
}

GenerationPlan RandomPlan(const SystemRequestOptions& options, Dice* dice) {
  GenerationPlan plan;
  const uint32_t vocab_size = options.model.vocab_size;
  const uint32_t length = PromptLength(options, dice);
  // Some begin like others.
  const uint32_t common = dice->OneIn(3) ? dice->Between(0, length) : 0;
  Dice of_all(dice->Between(1, 2));
  for (uint32_t i = 0; i < length; ++i) {
    Dice& one = i < common ? of_all : *dice;
    plan.prompt_ids.push_back(one.Between(0, vocab_size - 1));
  }
  plan.sampling = RandomSampling(vocab_size, dice);
  if (options.max_samples > 1 && dice->OneIn(4)) {
    plan.num_samples = dice->Between(2, options.max_samples);
  }
  plan.max_tokens = std::min(dice->Between(1, options.max_tokens),
                             options.model.max_context_tokens - length);
  if (length > 1 && dice->OneIn(8)) {
    plan.prompt_logprobs_from = dice->Between(1, length - 1);
  }
  if (dice->OneIn(4)) plan.stream_interval = dice->Between(2, 8);
  if (dice->OneIn(4)) plan.cache_salt = "salt";
  plan.bypass_cache = dice->OneIn(8);
  return plan;
}

}  // namespace

SystemRequest RandomRequest(const SystemRequestOptions& options,
                            const Tokenizer& tokenizer, Dice* dice) {
  SystemRequest request;
  request.plan = RandomPlan(options, dice);
  GenerationPlan& plan = request.plan;
  if (dice->OneIn(4)) {
    plan.stop_token_ids = {dice->Between(0, options.model.vocab_size - 1)};
    plan.min_tokens = dice->Between(0, plan.max_tokens / 2);
  }
  std::vector<ExpectedAnswer> whole;
  for (uint32_t i = 0; i < plan.num_samples; ++i) {
    whole.push_back(ExpectedAnswerOf(options.model, ToWorker(plan, i)));
  }
  if (plan.min_tokens == 0 && dice->OneIn(4)) {
    const std::vector<uint32_t>& tokens = whole.front().tokens;
    const uint32_t chosen = tokens[dice->Bits() % tokens.size()];
    const std::string_view text = TextOf(tokenizer, chosen);
    if (!text.empty()) plan.stop_strings.emplace_back(text);
  }
  for (const ExpectedAnswer& tokens : whole) {
    request.samples.push_back(Seen(plan, tokenizer, tokens));
  }
  request.prompt_logprobs = whole.front().prompt_logprobs;
  const auto some_time = [&] { return options.unit * dice->Between(1, 400); };
  if (options.cancels && dice->OneIn(5)) request.cancelled_after = some_time();
  if (options.has_deadlines && dice->OneIn(5)) request.deadline = some_time();
  request.reads_slowly = options.reads_slowly && dice->OneIn(3);
  return request;
}

}  // namespace baton
