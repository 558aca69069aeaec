// A token sink that keeps what it is told, and checks the order.
#ifndef BATON_TESTS_FAKES_RECORDING_TOKEN_SINK_H_
#define BATON_TESTS_FAKES_RECORDING_TOKEN_SINK_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "engine/token_sink.h"

namespace baton {

// Thread-compatible. A test reads the fields; nothing else writes them. Dies
// when a token index is repeated or left out, when the prompt's tokens come
// behind generated ones, and when it is told anything after the end.
struct RecordingTokenSink final : public TokenSink {
  using Alternatives = std::vector<std::pair<uint32_t, float>>;

  std::optional<KvHandle> handle;
  std::vector<uint32_t> progress;
  std::optional<uint32_t> first_prompt_index;  // Of the prompt tokens told.
  std::vector<uint32_t> prompt_tokens;
  std::vector<float> prompt_logprobs;
  std::vector<Alternatives> prompt_top;
  std::optional<uint32_t> first_token_index;
  std::vector<uint32_t> tokens;
  std::vector<float> logprobs;
  std::vector<Alternatives> top;  // Of each token.
  std::optional<GenerationOutcome> outcome;
  // Called after each new token; may be empty.
  std::function<void()> on_token;

  bool finished() const { return outcome.has_value(); }
  absl::StatusCode code() const { return outcome.value().status.code(); }

  void OnKvHandle(const KvHandle& new_handle) override;
  void OnProgress(uint32_t computed_tokens) override;
  void OnPromptLogprobs(const ScoredTokens& scored) override;
  void OnTokens(const ScoredTokens& scored) override;
  void OnFinished(const GenerationOutcome& end) override;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_RECORDING_TOKEN_SINK_H_
