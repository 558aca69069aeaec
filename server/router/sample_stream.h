// One sample's tokens, from the workers' chunks to what its client sees.
#ifndef BATON_SERVER_ROUTER_SAMPLE_STREAM_H_
#define BATON_SERVER_ROUTER_SAMPLE_STREAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/router/validate.h"
#include "server/text/detokenizer.h"
#include "server/text/stop_matcher.h"
#include "server/text/tokenizer.h"

namespace baton {

namespace v1 {
class GenerateChunk;
class GenerateFinished;
class TokenChunk;
}  // namespace v1

// Puts chunks of several workers (the prefill server's first tokens, then the
// decode server's from token 0 on) into one stream: tokens [0, num_tokens())
// have been passed on, each once and in order. Text lags behind ids: half a
// character and what may become a stop string are held back. Pure.
// Thread-compatible.
class SampleStream final {
 public:
  // Both are borrowed and outlive this.
  SampleStream(const Tokenizer* tokenizer, const GenerationPlan* plan);

  // Appends the chunk's new tokens, and the text they complete, to `*out`.
  // Known tokens are dropped; a gap, a token that differs from what was passed
  // on, and one past the end are INTERNAL. Tokens after the one that completed
  // a stop string are dropped.
  absl::Status Append(const v1::TokenChunk& chunk, v1::GenerateChunk* out);

  // The end: appends the text that was held back, if no stop string was met.
  void Flush(v1::GenerateChunk* out);

  uint32_t num_tokens() const {
    return static_cast<uint32_t>(token_ids_.size());
  }
  const std::vector<uint32_t>& token_ids() const { return token_ids_; }
  bool met_stop_string() const { return stop_string_.has_value(); }
  bool met_stop_token() const { return met_stop_token_; }
  bool met_length() const { return num_tokens() == plan_->max_tokens; }

  // Sets finish_reason and stop. REQUIRES: one of the three was met.
  void FillReason(v1::GenerateFinished* finished) const;

 private:
  absl::Status AppendNew(const v1::TokenChunk& chunk, int i,
                         v1::GenerateChunk* out);
  void AppendText(uint32_t id, std::string* out);
  // Text that may hold a stop string; it is kept, if that was asked for.
  void Search(std::string_view text, std::string* out);

  const GenerationPlan* const plan_;
  Detokenizer detokenizer_;
  StopMatcher stop_matcher_;
  std::vector<uint32_t> token_ids_;
  std::string new_text_;  // Of one token; kept for its memory.
  bool met_stop_token_ = false;
  std::optional<size_t> stop_string_;  // Its index in the plan.
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_SAMPLE_STREAM_H_
