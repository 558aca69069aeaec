#include "tests/simulation/request_source.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/cache_spec.h"

namespace baton {

RequestSource::RequestSource(const Options& options)
    : options_(options), random_(options.seed) {}

const SimulatedRequest& RequestSource::Get(uint64_t index) {
  while (requests_.size() <= index) Add();
  return requests_[index];
}

void RequestSource::Add() {
  if (options_.max_samples > 1 && OneIn(5)) {
    return AddSamples(1 + UpTo(options_.max_samples - 1));
  }
  SimulatedRequest added;
  added.request = !requests_.empty() && OneIn(4) ? NextSample() : NewRequest();
  ExpectedTokens whole = ExpectedOf(options_.model, added.request);
  if (OneIn(options_.fills_pool ? 12 : 3)) {
    AddStops(whole, &added.request);
    whole = ExpectedOf(options_.model, added.request);
  }
  // An earlier attempt has got some already.
  if (whole.tokens.size() > 1 && OneIn(8)) {
    const auto received = UpTo(static_cast<uint32_t>(whole.tokens.size()) - 1);
    const auto end = whole.tokens.begin() + received;
    added.request.token_ids.insert(added.request.token_ids.end(),
                                   whole.tokens.begin(), end);
    whole.tokens.erase(whole.tokens.begin(), end);
    whole.logprobs.erase(whole.logprobs.begin(),
                         whole.logprobs.begin() + received);
  }
  added.expected = std::move(whole);
  if (OneIn(6)) added.deadline_units = UpTo(300);
  requests_.push_back(std::move(added));
}

void RequestSource::AddSamples(uint32_t num_samples) {
  GenerationRequest request = NewRequest();
  if (OneIn(3)) AddStops(ExpectedOf(options_.model, request), &request);
  for (uint32_t i = 0; i < num_samples; ++i) {
    SimulatedRequest added;
    added.request = request;
    added.expected = ExpectedOf(options_.model, request);
    if (i == 0) {
      added.num_samples = num_samples;
      if (OneIn(6)) added.deadline_units = UpTo(300);
    }
    requests_.push_back(std::move(added));
    ++request.sample_index;
  }
}

GenerationRequest RequestSource::NewRequest() {
  GenerationRequest request;
  request.id = {.router_nonce = 1, .counter = requests_.size()};
  request.original_prompt_tokens = PromptLength();
  if (!requests_.empty() && OneIn(2)) GoOnBehind(&request);
  while (request.token_ids.size() < request.original_prompt_tokens) {
    request.token_ids.push_back(
        static_cast<uint32_t>(random_() % options_.model.vocab_size));
  }
  if (OneIn(6)) request.cache_salt = OneIn(2) ? "a" : "b";
  request.bypass_prefix_cache = OneIn(8);
  constexpr std::array<float, 4> kTemperatures = {0, 0.5f, 1, 2};
  request.sampling = {
      .temperature = kTemperatures[random_() % kTemperatures.size()],
      .top_p = OneIn(2) ? 1 : 0.9f,
      .min_p = OneIn(2) ? 0 : 0.02f,
      .top_k = OneIn(2) ? 0 : UpTo(options_.model.vocab_size),
      .seed = random_()};
  request.max_tokens = OneIn(8) ? 10000 : UpTo(options_.max_tokens);
  if (options_.fills_pool) request.max_tokens += options_.max_tokens;
  if (OneIn(options_.fills_pool ? 12 : 3)) request.max_tokens = UpTo(6);
  return request;
}

// The prompt begins with one of the newest requests, and its answer, as far as
// there is room.
void RequestSource::GoOnBehind(GenerationRequest* request) {
  const size_t recent = std::min<size_t>(requests_.size(), 8);
  const SimulatedRequest& before =
      requests_[requests_.size() - 1 - random_() % recent];
  request->token_ids = before.request.token_ids;
  request->token_ids.insert(request->token_ids.end(),
                            before.expected.tokens.begin(),
                            before.expected.tokens.end());
  const uint32_t length = request->original_prompt_tokens;
  const size_t room = OneIn(2) ? length : UpTo(length);
  request->token_ids.resize(std::min(request->token_ids.size(), room));
}

// Another sample of the newest request.
GenerationRequest RequestSource::NextSample() {
  GenerationRequest request = requests_.back().request;
  ++request.sample_index;
  request.stop_token_ids.clear();
  request.token_ids.resize(request.original_prompt_tokens);
  return request;
}

// Often at a block's edge.
uint32_t RequestSource::PromptLength() {
  uint32_t length = UpTo(options_.max_prompt_tokens);
  if (OneIn(options_.fills_pool ? 1 : 4)) {
    constexpr uint32_t kBlock = CacheSpec::kBlockTokens;
    length = (length + kBlock - 1) / kBlock * kBlock - 1 + random_() % 3;
  }
  if (OneIn(options_.fills_pool ? 16 : 4)) length = UpTo(8);
  return std::min(length, options_.model.max_context_tokens - 1);
}

// One that comes, and some that may.
void RequestSource::AddStops(const ExpectedTokens& whole,
                             GenerationRequest* request) {
  if (!whole.tokens.empty()) {
    request->stop_token_ids.push_back(
        whole.tokens[random_() % whole.tokens.size()]);
  }
  const uint64_t others = random_() % 3;
  for (uint64_t i = 0; i < others; ++i) {
    request->stop_token_ids.push_back(
        static_cast<uint32_t>(random_() % options_.model.vocab_size));
  }
}

}  // namespace baton
