#include "tests/fakes/recording_token_sink.h"

#include "base/logging.h"

namespace baton {

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

void RecordingTokenSink::OnTokens(uint32_t first_index,
                                  std::span<const uint32_t> token_ids,
                                  std::span<const float> new_logprobs) {
  CHECK(!finished());
  CHECK_EQ(token_ids.size(), new_logprobs.size());
  if (!first_token_index.has_value()) first_token_index = first_index;
  CHECK_EQ(first_index, *first_token_index + tokens.size());
  tokens.insert(tokens.end(), token_ids.begin(), token_ids.end());
  logprobs.insert(logprobs.end(), new_logprobs.begin(), new_logprobs.end());
  if (on_token) on_token();
}

void RecordingTokenSink::OnFinished(const GenerationOutcome& end) {
  CHECK(!finished()) << "a second end";
  outcome = end;
}

}  // namespace baton
