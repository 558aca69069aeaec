#include "kernels/reference/sample_cases.h"

#include <cmath>
#include <limits>

namespace baton {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void AddPenalties(RandomValues& random, SampleCase* c) {
  const float repetitions[] = {1, 1.3f, 0.7f, 2, 1e-3f};
  const float penalties[] = {0, 0, 0.3f, -0.7f, 2};
  c->params.repetition_penalty = repetitions[random.Below(5)];
  c->params.presence_penalty = penalties[random.Below(5)];
  c->params.frequency_penalty = penalties[random.Below(5)];
  // From hardly any token to most of them.
  const int rarity = 1 << random.Below(8);
  for (size_t i = 0; i < c->logits.size(); ++i) {
    uint32_t word = random.Below(rarity) == 0 ? kPromptTokenBit : 0;
    if (random.Below(rarity) == 0) {
      word |= static_cast<uint32_t>(random.Below(5));
    }
    c->token_counts.push_back(word);
  }
  for (int i = random.Below(6); i > 0; --i) {
    c->uncounted.push_back(static_cast<uint32_t>(
        random.Below(static_cast<int>(c->logits.size()))));
  }
}

}  // namespace

SampleParams SampleCase::Borrowed() const {
  SampleParams result = params;
  if (!token_counts.empty()) result.token_counts = token_counts.data();
  result.uncounted = uncounted;
  result.logit_bias = logit_bias;
  result.forbidden = forbidden;
  return result;
}

SampleCase RandomSampleCase(RandomValues& random) {
  const int vocab = 1 + random.Below(random.Below(2) == 0 ? 100 : 5000);
  const float scales[] = {0, 0.01f, 1, 3, 30};
  SampleCase c;
  c.logits =
      random.Normals(static_cast<size_t>(vocab), scales[random.Below(5)]);
  if (random.Below(3) == 0) {
    for (float& x : c.logits) x = std::round(x * 4) / 4;
  }
  if (random.Below(4) == 0) {
    for (float& x : c.logits) {
      if (random.Below(3) == 0) x = -kInfinity;
    }
    c.logits[static_cast<size_t>(random.Below(vocab))] = 1;
  }
  const float temperatures[] = {0, 0.01f, 0.3f, 0.7f, 1, 2, 50};
  const float top_ps[] = {1, 1, 0.999999f, 0.95f, 0.5f, 0.01f, 1e-30f};
  const float min_ps[] = {0, 0, 0, 1e-40f, 1e-4f, 0.05f, 1};
  const uint32_t top_ks[] = {0, 0, 1, 2, 40, 1000, 4294967295u};
  c.params = {.temperature = temperatures[random.Below(7)],
              .top_p = top_ps[random.Below(7)],
              .min_p = min_ps[random.Below(7)],
              .top_k = top_ks[random.Below(7)],
              .seed = random.Next(),
              .sample_index = static_cast<uint32_t>(random.Next()),
              .position = random.Next() >> random.Below(64)};
  return c;
}

void AddRandomModifiers(RandomValues& random, SampleCase* c) {
  const int vocab = static_cast<int>(c->logits.size());
  if (random.Below(3) != 0) AddPenalties(random, c);
  if (random.Below(2) == 0) {
    const int step = 1 + random.Below(50);
    for (int id = random.Below(step); id < vocab; id += step) {
      c->logit_bias.push_back({static_cast<uint32_t>(id), random.Normal(5)});
    }
  }
  if (random.Below(2) == 0) {
    for (int i = random.Below(5); i > 0; --i) {
      c->forbidden.push_back(static_cast<uint32_t>(random.Below(vocab + 3)));
    }
  }
  c->params.num_top_logprobs = static_cast<uint32_t>(random.Below(21));
  c->params.logprobs_after_truncation = random.Below(2) == 0;
}

}  // namespace baton
