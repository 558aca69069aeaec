// One sample of a request: what of it waits to be sent, and how it ended.
#ifndef BATON_SERVER_ROUTER_SAMPLE_H_
#define BATON_SERVER_ROUTER_SAMPLE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/baton/v1/inference.pb.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/router/sample_stream.h"
#include "server/router/validate.h"
#include "server/text/tokenizer.h"

namespace baton {

// Pure. Thread-compatible.
class Sample final {
 public:
  // Tokenizer and plan are borrowed and outlive this.
  Sample(uint32_t index, const Tokenizer* tokenizer,
         const GenerationPlan* plan);

  uint32_t index() const { return index_; }
  uint32_t num_tokens() const { return stream_.num_tokens(); }
  const std::vector<uint32_t>& token_ids() const { return stream_.token_ids(); }
  bool met_stop_string() const { return stream_.met_stop_string(); }
  // Its tokens so far are all, whether or not a worker has said so.
  bool met_end() const {
    return met_stop_string() || stream_.met_stop_token() ||
           stream_.met_length();
  }

  // As SampleStream's, but that what comes after a stop string is dropped.
  absl::Status Append(const v1::TokenChunk& tokens);

  // The worker's word that it ended this sample. INTERNAL: it did so too early,
  // or twice. After a stop string it changes nothing.
  absl::Status OnFinished(const v1::DecodeFinished& finished);
  // The end: nothing of it waits for more tokens. REQUIRES: met_end().
  void End(absl::Duration since_arrival);
  bool over() const { return over_; }
  // Over, but not by the worker's word.
  bool worker_may_go_on() const { return over_ && !worker_ended_; }
  // Whether the worker must be told to end it: true once.
  bool TakeAbort() {
    return worker_may_go_on() && !std::exchange(aborted_, true);
  }

  // What waits for the stream interval need wait no longer.
  void Release() { ready_ = true; }
  bool HasChunk() const;
  bool HasEnd() const { return over_ && !told_; }
  // Appends the chunk that is ready, if any, and with `summary`, of the whole
  // request, the end of a sample that is over.
  void TakeResponses(const v1::GenerateFinished* summary,
                     std::vector<v1::GenerateResponse>* out);

 private:
  const uint32_t index_;
  const uint32_t stream_interval_;
  SampleStream stream_;
  v1::GenerateChunk chunk_;  // What waits.
  bool ready_ = false;       // So does the client, for that.
  bool over_ = false;
  bool worker_ended_ = false;
  bool aborted_ = false;
  bool told_ = false;  // The client, of the end.
  absl::Duration total_;
};

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_SAMPLE_H_
