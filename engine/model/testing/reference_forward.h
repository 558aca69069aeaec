// The family's forward pass in double, written for reading: attention in
// expanded form, no cache, no batching; shares no arithmetic with the engine.
#ifndef BATON_ENGINE_MODEL_TESTING_REFERENCE_FORWARD_H_
#define BATON_ENGINE_MODEL_TESTING_REFERENCE_FORWARD_H_

#include <cstdint>
#include <string>
#include <vector>

namespace baton {

struct ReferenceResult {
  std::vector<std::vector<double>> logits;  // Of every position.
  // The drafter's, with the main model's state of position i and the token
  // behind it: of every position but the last. None without an MTP layer.
  std::vector<std::vector<double>> draft_logits;
  // The smallest distance by which any expert or group was selected: where it
  // is tiny, float32 may choose another.
  double min_route_margin = 1e30;
};

// Reads the folder's bf16 or float32 tensors and its config.json anew.
ReferenceResult ReferenceForward(const std::string& folder,
                                 const std::vector<uint32_t>& token_ids);

}  // namespace baton

#endif  // BATON_ENGINE_MODEL_TESTING_REFERENCE_FORWARD_H_
