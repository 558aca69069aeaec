#include "tests/fakes/recording_token_sink.h"

#include "base/logging.h"

namespace baton {
namespace {

void Append(const ScoredTokens& scored, std::vector<uint32_t>* ids,
            std::vector<float>* logprobs,
            std::vector<RecordingTokenSink::Alternatives>* top) {
  for (size_t i = 0; i < scored.tokens.size(); ++i) {
    ids->push_back(scored.tokens[i].token_id);
    logprobs->push_back(scored.tokens[i].logprob);
    RecordingTokenSink::Alternatives& alternatives = top->emplace_back();
    for (const SampledToken& token : scored.TopOf(i)) {
      alternatives.emplace_back(token.token_id, token.logprob);
    }
  }
}

}  // namespace

void RecordingTokenSink::OnKvHandle(const KvHandle& new_handle) {
  CHECK(!finished());
  CHECK(!handle.has_value()) << "a second handle";
  handle = new_handle;
}

void RecordingTokenSink::OnProgress(uint32_t computed_tokens) {
  CHECK(!finished());
  CHECK(progress.empty() || progress.back() < computed_tokens);
  progress.push_back(computed_tokens);
}

void RecordingTokenSink::OnPromptLogprobs(const ScoredTokens& scored) {
  CHECK(!finished());
  CHECK(tokens.empty());
  if (!first_prompt_index.has_value()) first_prompt_index = scored.first_index;
  CHECK_EQ(scored.first_index, *first_prompt_index + prompt_tokens.size());
  Append(scored, &prompt_tokens, &prompt_logprobs, &prompt_top);
}

void RecordingTokenSink::OnTokens(const ScoredTokens& scored) {
  CHECK(!finished());
  if (!first_token_index.has_value()) first_token_index = scored.first_index;
  CHECK_EQ(scored.first_index, *first_token_index + tokens.size());
  Append(scored, &tokens, &logprobs, &top);
  if (on_token) on_token();
}

void RecordingTokenSink::OnFinished(const GenerationOutcome& end) {
  CHECK(!finished()) << "a second end";
  outcome = end;
}

}  // namespace baton
