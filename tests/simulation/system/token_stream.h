// One Prefill or Decode call at a simulated worker: what TokenStreamReactor is
// to a real one, and the same ends of samples and calls.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_TOKEN_STREAM_H_
#define BATON_TESTS_SIMULATION_SYSTEM_TOKEN_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "engine/generation_request.h"
#include "engine/llm_engine.h"
#include "engine/token_sink.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/edge/request_gate.h"
#include "server/token_messages.h"
#include "tests/simulation/system/process_streams.h"
#include "tests/simulation/system/server_stream.h"

namespace baton {

// What a stream uses; outlives it.
struct TokenStreamParts {
  LLMEngine* engine = nullptr;
  RequestGate* gate = nullptr;
  std::shared_ptr<ProcessStreams> streams;  // See ServerStream.
  // How each request ended, in the engine.
  std::function<void(const GenerationOutcome&)> on_outcome;
  // All samples of a stream stand still; its reader is cut.
  std::function<void()> on_paused;
  std::function<void()> on_cut;
  // The engine has something to do, or a call is over.
  std::function<void()> wake;
};

// One thread.
class AnyTokenStream {
 public:
  virtual ~AnyTokenStream() = default;
  virtual void Abort() = 0;  // All its samples.
  // The call is, and the engine has no sample of it.
  virtual bool is_over() const = 0;
};

template <typename Response>
class TokenStream final : public AnyTokenStream {
 public:
  TokenStream(StreamStart<Response> start, const TokenStreamParts* parts,
              GenerationRequest request);

  void Abort() override;
  bool is_over() const override { return stream_.is_over(); }

 private:
  class Sample final : public TokenSink {
   public:
    Sample(TokenStream* stream, uint32_t index)
        : stream_(stream), index_(index) {}
    void OnKvHandle(const KvHandle& handle) override;
    void OnProgress(uint32_t computed_tokens) override;
    void OnPromptLogprobs(const ScoredTokens& tokens) override;
    void OnTokens(const ScoredTokens& tokens) override;
    void OnFinished(const GenerationOutcome& outcome) override;
    void Abort();

   private:
    SampleName name() const {
      return {.index = index_, .attempt = stream_->attempt_};
    }

    TokenStream* const stream_;
    const uint32_t index_;
    bool ended_ = false;
  };

  void OnFlow(bool paused);
  void Tell(Response response);
  void OnSampleEnd(const GenerationOutcome& outcome);
  absl::Status ToPeer(const absl::Status& status) const;

  const TokenStreamParts* const parts_;
  const RequestId id_;
  const uint32_t first_sample_;
  const uint32_t num_samples_;
  const uint32_t attempt_;
  ServerStream<Response, TokenStreamTraits> stream_;
  std::deque<Sample> samples_;
  size_t num_ended_ = 0;
  SampleEnd end_ = SampleEnd::kAborted;  // The highest yet.
  absl::Status end_status_;              // Its.
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_TOKEN_STREAM_H_
