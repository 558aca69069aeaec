// The demo model behind one engine, or behind a prefill and a decode engine
// joined by a real transport: requests in, tokens out. One thread drives it
// all, but for the devices that have one of their own.
#ifndef BATON_TESTS_INVARIANCE_TOKEN_MACHINE_H_
#define BATON_TESTS_INVARIANCE_TOKEN_MACHINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine_options.h"
#include "engine/generation_request.h"
#include "engine/model/numerics.h"
#include "kernels/cpu_context.h"
#include "kernels/latent_attention.h"

namespace baton {

enum class PoolSplit { kUnified, kSharedMemory, kTcp };

// One way to compute the same tokens. All but `cache` and `numerics` must not
// change a bit.
struct MachineConfig {
  PoolSplit split = PoolSplit::kUnified;
  uint32_t max_chunk_tokens = 512;
  uint32_t max_running_requests = 1;
  bool preempt_before_every_token = false;
  VectorIsa isa = VectorIsa::kArray;
  int threads = 1;
  CacheDtype cache = CacheDtype::kF32;
  Numerics numerics = Numerics::kExact;
  uint32_t pipeline_depth = 1;
  // A thread for each engine's device, so that steps really overlap; else the
  // driver's thread does one task of the device after each turn of the engine.
  bool device_thread = false;
  uint32_t num_draft_tokens = 0;
  bool adaptive_verification = false;  // Else all drafts are verified.
  uint32_t pool_blocks = 256;          // Of each engine.
  bool prefix_cache = false;           // Else every row is computed.

  std::string ToString() const;
};

// All that one sample is told, log-probabilities as the bits of their floats.
struct GeneratedSequence {
  std::vector<uint32_t> token_ids;
  std::vector<uint32_t> logprob_bits;
  // Where alternatives are asked for, of each token: how many are listed, then
  // the id and the log-probability of each.
  std::vector<uint32_t> top;
  // Of each token of the prompt: id, log-probability, alternatives as above.
  std::vector<uint32_t> prompt;

  friend bool operator==(const GeneratedSequence&,
                         const GeneratedSequence&) = default;
};

struct MachineResult {
  // In the order of the requests, of each its samples; without the tokens that
  // these resume from.
  std::vector<GeneratedSequence> sequences;
  // Pairs of (sample, generated index) before which the sample was preempted.
  uint32_t num_preempted_indices = 0;
  // All steps of the engine that decodes.
  uint32_t num_preemptions = 0;
  uint32_t num_steps = 0;
  // Found in the prefix caches, of each engine.
  std::vector<uint64_t> hit_tokens;
  std::array<uint32_t, kMaxDraftTokens> drafts_verified = {};
  std::array<uint32_t, kMaxDraftTokens> drafts_accepted = {};
};

// Runs all requests to their end. `model_folder` is a Hugging Face folder. Dies
// on any error: a request that fails, a token out of order, a block not freed.
MachineResult RunRequests(const std::string& model_folder,
                          const MachineConfig& config,
                          const std::vector<GenerationRequest>& requests);

// Each sample as a request of its own, in the order of MachineResult. Only the
// first of a request is told of the prompt.
std::vector<GenerationRequest> SamplesAlone(
    const std::vector<GenerationRequest>& requests);

// `count` different requests, the same ones on every machine: prompts of 1 to
// 200 ids, greedy and seeded sampling with all truncations, 4 to 12 tokens
// each.
std::vector<GenerationRequest> MixedRequests(int count, uint32_t vocab_size);

size_t NumTokens(const std::vector<GeneratedSequence>& sequences);

// FNV-1a (64 bits) over all that the samples are told.
uint64_t Digest(const std::vector<GeneratedSequence>& sequences);

}  // namespace baton

#endif  // BATON_TESTS_INVARIANCE_TOKEN_MACHINE_H_
