// A small model, a good request for it, and the whole check.
#ifndef BATON_SERVER_ROUTER_VALIDATE_FOR_TEST_H_
#define BATON_SERVER_ROUTER_VALIDATE_FOR_TEST_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/v1/inference.pb.h"
#include "server/router/validate.h"

namespace baton {

inline ModelBounds Model() {
  ModelBounds model;
  model.vocab_size = 100;
  model.max_context_tokens = 32;
  model.longest_token_bytes = 8;
  model.sampling_defaults = {.temperature = 0.7f,
                             .top_p = 0.95f,
                             .min_p = 0.25f,
                             .top_k = 3,
                             .seed = std::nullopt};
  model.eos_token_ids = {1, 2};
  return model;
}

inline v1::GenerateRequest Request(int num_tokens = 3) {
  v1::GenerateRequest request;
  for (int i = 0; i < num_tokens; ++i) {
    request.mutable_prompt()->mutable_token_ids()->add_ids(50);
  }
  return request;
}

// All that a request's checks say, its prompt's ids taken as they are.
inline absl::StatusOr<GenerationPlan> Check(
    const v1::GenerateRequest& request) {
  const absl::Status status = ValidateGenerateRequest(request, Model());
  if (!status.ok()) return status;
  const auto& ids = request.prompt().token_ids().ids();
  return MakePlan(request, {ids.begin(), ids.end()}, Model());
}

}  // namespace baton

#endif  // BATON_SERVER_ROUTER_VALIDATE_FOR_TEST_H_
