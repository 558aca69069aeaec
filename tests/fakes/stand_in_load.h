// Requests to the stand-in model that come as fast as others end.
#ifndef BATON_TESTS_FAKES_STAND_IN_LOAD_H_
#define BATON_TESTS_FAKES_STAND_IN_LOAD_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "engine/generation_request.h"
#include "engine/llm_engine.h"
#include "engine/token_sink.h"

namespace baton {

// A closed loop, on the engine thread: each request that ends brings the next.
// Request i is the same in every load with the same options.
class StandInLoad {
 public:
  struct Options {
    uint32_t vocab_size = 512;
    uint32_t prompt_tokens = 32;  // 1 to so many.
    uint32_t max_tokens = 64;     // Half of it to one and a half.
  };

  explicit StandInLoad(const Options& options) : options_(options) {}

  // Submits `concurrent` requests, and in all `total`, unless stopped.
  void Start(LLMEngine* engine, uint32_t concurrent, uint64_t total);
  // No more requests.
  void Stop() { total_ = requests_.size(); }

  uint64_t num_submitted() const { return requests_.size(); }
  bool done() const {
    return requests_.size() == total_ && num_finished_ == total_;
  }
  // Of request i, so far.
  const std::vector<uint32_t>& tokens(uint64_t i) const {
    return requests_[i].tokens;
  }
  // Requests that have others than expected[their number]. Those behind its end
  // are not looked at, nor those not yet submitted.
  uint64_t CountOthers(
      const std::vector<std::vector<uint32_t>>& expected) const;

 private:
  struct Request final : public TokenSink {
    explicit Request(StandInLoad* to) : load(to) {}
    void OnKvHandle(const KvHandle&) override {}
    void OnProgress(uint32_t) override {}
    void OnPromptLogprobs(const ScoredTokens&) override {}
    void OnTokens(const ScoredTokens& scored) override;
    void OnFinished(const GenerationOutcome& outcome) override;

    StandInLoad* const load;
    std::vector<uint32_t> tokens;
  };

  GenerationRequest MakeRequest(uint64_t i) const;
  void SubmitNext();

  const Options options_;
  LLMEngine* engine_ = nullptr;
  uint64_t total_ = 0;
  uint64_t num_finished_ = 0;
  std::deque<Request> requests_;
};

// The tokens of the first `num_requests`, by a CpuStepExecutor.
std::vector<std::vector<uint32_t>> StandInTokensOnCpu(
    const StandInLoad::Options& options, uint64_t num_requests);

}  // namespace baton

#endif  // BATON_TESTS_FAKES_STAND_IN_LOAD_H_
