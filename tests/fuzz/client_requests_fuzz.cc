// What reaches the router's port: requests of clients.
#include <string>
#include <string_view>
#include <vector>

#include "base/logging.h"
#include "proto/baton/v1/inference.pb.h"
#include "server/edge/request_size.h"
#include "server/router/validate.h"
#include "server/router/validate_for_test.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton {

std::vector<std::string> FuzzSeeds() {
  v1::GenerateRequest full = Request();
  v1::SamplingParams& sampling = *full.mutable_sampling();
  sampling.set_temperature(0.5);
  sampling.set_top_p(0.9);
  sampling.set_top_k(5);
  sampling.set_min_p(0.1);
  sampling.set_seed(7);
  sampling.set_repetition_penalty(1.1);
  sampling.set_presence_penalty(1);
  sampling.set_frequency_penalty(-1);
  sampling.add_logit_bias()->set_token_id(5);
  sampling.set_n(3);
  v1::StoppingParams& stopping = *full.mutable_stopping();
  stopping.set_max_tokens(9);
  stopping.add_stop_strings("end");
  stopping.add_stop_token_ids(4);
  stopping.set_min_tokens(2);
  full.set_client_request_id("mine");
  full.mutable_logprobs()->set_top(3);
  full.mutable_logprobs()->set_prompt_from(1);
  full.mutable_output()->set_stream_interval(4);
  full.mutable_cache()->set_salt("tenant");
  v1::GenerateRequest text;
  text.mutable_prompt()->mutable_text()->set_text("hello");
  v1::GenerateRequest chat;
  v1::ChatMessage& message =
      *chat.mutable_prompt()->mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("hello");
  return {full.SerializeAsString(), text.SerializeAsString(),
          chat.SerializeAsString()};
}

// A plan keeps every bound; what is refused is the caller's fault.
void FuzzOne(std::string_view bytes) {
  v1::GenerateRequest request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return;
  }
  const auto plan = Check(request);
  if (!plan.ok()) {
    CHECK(absl::IsInvalidArgument(plan.status())) << plan.status();
    return;
  }
  const ModelBounds model = Model();
  CHECK_LE(plan->prompt_ids.size() + plan->max_tokens,
           model.max_context_tokens);
  CHECK_LE(plan->min_tokens, plan->max_tokens);
  CHECK_LE(plan->num_samples, kMaxSamples);
  CHECK(plan->sampling.temperature >= 0 &&
        plan->sampling.temperature <= kMaxTemperature);
  for (const uint32_t id : plan->prompt_ids) CHECK_LT(id, model.vocab_size);
}

}  // namespace baton
