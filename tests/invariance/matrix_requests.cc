#include "tests/invariance/matrix_requests.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>

namespace baton {
namespace {

constexpr int kNumRequests = 64;
constexpr uint32_t kVocabSize = 4096;
// Prompts of one block, one after the other, that grow to up to four blocks
// each in a pool of four.
constexpr int kFirstLong = 8;
constexpr int kNumLong = 8;
constexpr uint32_t kLongTokens = 140;

class Asker {
 public:
  void Ask(GenerationRequest* request) {
    AskForPenalties(&request->sampling);
    AskForBias(&request->sampling);
    if (OneIn(5)) Resume(request);
    if (OneIn(2)) request->sampling.num_top_logprobs = UpTo(kMaxTopLogprobs);
    request->sampling.logprobs_after_truncation = OneIn(3);
    if (OneIn(3)) {
      request->prompt_logprobs_from =
          OneIn(3) ? 0 : Below(request->original_prompt_tokens);
    }
    if (OneIn(2)) request->min_tokens = UpTo(request->max_tokens);
    if (OneIn(4)) {
      request->num_samples = 1 + UpTo(3);
      request->sample_index = Below(3);
    }
  }

 private:
  // Its output is fixed by the standard; that of distributions is not.
  uint32_t Below(uint32_t end) {
    return static_cast<uint32_t>(random_() % end);
  }
  uint32_t UpTo(uint32_t last) { return 1 + Below(last); }
  bool OneIn(uint32_t count) { return Below(count) == 0; }
  float Any(const std::array<float, 4>& values) { return values[Below(4)]; }

  void AskForPenalties(SamplingParams* sampling) {
    if (OneIn(3)) sampling->repetition_penalty = Any({0.8f, 1.1f, 1.3f, 2});
    if (OneIn(3)) sampling->presence_penalty = Any({-0.5f, 0.3f, 1, 2});
    if (OneIn(3)) sampling->frequency_penalty = Any({-0.2f, 0.3f, 1, 2});
  }

  void AskForBias(SamplingParams* sampling) {
    if (!OneIn(3)) return;
    const uint32_t count = UpTo(8);
    const uint32_t first = Below(kVocabSize);
    for (uint32_t i = 0; i < count; ++i) {
      sampling->logit_bias.push_back({.token_id = (first + 17 * i) % kVocabSize,
                                      .bias = Any({-100, -1, 4, 9})});
    }
  }

  // The last tokens are not of the prompt, but an earlier attempt's.
  void Resume(GenerationRequest* request) {
    const uint32_t tokens = UpTo(3);
    if (request->original_prompt_tokens > tokens) {
      request->original_prompt_tokens -= tokens;
    }
  }

  std::mt19937_64 random_{20261130};
};

}  // namespace

std::vector<GenerationRequest> MatrixRequests() {
  std::vector<GenerationRequest> requests =
      MixedRequests(kNumRequests, kVocabSize);
  for (int i = kFirstLong; i < kFirstLong + kNumLong; ++i) {
    requests[i].token_ids.resize(
        std::min<size_t>(requests[i].token_ids.size(), 60));
    requests[i].original_prompt_tokens =
        static_cast<uint32_t>(requests[i].token_ids.size());
    requests[i].max_tokens = kLongTokens;
  }
  Asker asker;
  for (GenerationRequest& request : requests) asker.Ask(&request);
  return requests;
}

void AddStops(const std::vector<GeneratedSequence>& unstopped,
              std::vector<GenerationRequest>* requests) {
  size_t first = 0;
  for (size_t i = 0; i < requests->size(); ++i) {
    GenerationRequest& request = (*requests)[i];
    const std::vector<uint32_t>& ids =
        unstopped[first + i % request.num_samples].token_ids;
    first += request.num_samples;
    if (i % 3 == 2) request.stop_token_ids = {0, ids[i * 7 % ids.size()]};
  }
}

}  // namespace baton
