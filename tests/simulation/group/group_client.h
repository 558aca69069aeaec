// A client of a simulated group: one request, until it has all its tokens.
#ifndef BATON_TESTS_SIMULATION_GROUP_GROUP_CLIENT_H_
#define BATON_TESTS_SIMULATION_GROUP_GROUP_CLIENT_H_

#include <cstdint>
#include <random>
#include <vector>

#include "engine/generation_request.h"
#include "engine/token_sink.h"

namespace baton {

// What a request asks for, and what it must get.
struct GroupRequest {
  GenerationRequest request;
  std::vector<uint32_t> expected;
};

// So many, of prompts and answers of up to these lengths. With hashes_kv for
// the model that hashes its KV, else for LightStepExecutor.
struct GroupRequestOptions {
  uint32_t count = 24;
  uint32_t max_prompt_tokens = 200;
  uint32_t max_new_tokens = 100;
  bool hashes_kv = false;
};
std::vector<GroupRequest> MakeGroupRequests(const GroupRequestOptions& options,
                                            std::mt19937_64* random);

// Does a router's part: when its rank hands the request back it comes again,
// with the tokens that it has. Dies of a wrong, lost or repeated token, and of
// an end that nobody asked for. One thread.
class GroupClient final : public TokenSink {
 public:
  enum class State {
    kOutside,  // To be submitted, for the first time or again.
    kInside,   // Submitted.
    kDone,     // Has all its tokens, or was aborted.
  };

  // Borrows `wanted`. `progress` counts tokens and ends.
  GroupClient(const GroupRequest* wanted, RequestId id, uint64_t* progress)
      : wanted_(wanted), id_(id), progress_(progress) {}

  // What to submit, at `rank`.
  GenerationRequest Submit(uint32_t rank);
  // It was not taken.
  void Refused() { state_ = State::kOutside; }
  // Its rank is dead, and what it says from now on is not heard.
  void Lose() { lost_ = true; }
  // The dead rank is gone.
  void Leave();
  void Abort() { aborted_ = true; }

  State state() const { return state_; }
  uint32_t rank() const { return rank_; }
  RequestId id() const { return id_; }
  bool aborted() const { return aborted_; }
  // Its rank has told it nothing so far.
  bool waits() const { return state_ == State::kInside && tokens_here_ == 0; }
  uint64_t num_tokens() const { return received_; }
  uint32_t num_submits() const { return num_submits_; }

  void OnKvHandle(const KvHandle& handle) override;
  void OnProgress(uint32_t computed_tokens) override;
  void OnPromptLogprobs(const ScoredTokens& scored) override;
  void OnTokens(const ScoredTokens& scored) override;
  void OnFinished(const GenerationOutcome& outcome) override;

 private:
  const GroupRequest* const wanted_;
  const RequestId id_;
  uint64_t* const progress_;
  State state_ = State::kOutside;
  uint32_t rank_ = 0;
  uint32_t num_submits_ = 0;
  uint32_t received_ = 0;
  uint32_t tokens_here_ = 0;  // Of these, since it was submitted.
  bool aborted_ = false;
  bool lost_ = false;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_GROUP_GROUP_CLIENT_H_
