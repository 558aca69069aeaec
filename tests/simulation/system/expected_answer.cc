#include "tests/simulation/system/expected_answer.h"

#include <utility>

#include "base/logging.h"
#include "engine/generation_request.h"
#include "server/convert.h"
#include "tests/fakes/fake_rank.h"
#include "tests/simulation/system/fake_rank_options.h"

namespace baton {

ExpectedAnswer ExpectedAnswerOf(const ModelShape& model,
                                const v1::WorkerRequest& request) {
  v1::DecodeRequest decode;
  *decode.mutable_request() = request;
  const auto converted = ToGenerationRequest(
      decode, {.vocab_size = model.vocab_size,
               .max_context_tokens = model.max_context_tokens});
  CHECK_OK(converted.status());
  ExpectedTokens expected = ExpectedOf(ToModelOptions(model), *converted);
  return {.prompt_logprobs = std::move(expected.prompt_logprobs),
          .tokens = std::move(expected.tokens),
          .logprobs = std::move(expected.logprobs)};
}

}  // namespace baton
