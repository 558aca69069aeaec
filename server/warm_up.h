// A first request through the engine, before anyone may ask.
#ifndef BATON_SERVER_WARM_UP_H_
#define BATON_SERVER_WARM_UP_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/llm_engine.h"

namespace baton {

// One prefill step and one decode step. REQUIRES: the engine is turned by
// another thread. DEADLINE_EXCEEDED after `timeout`.
absl::Status WarmUp(LLMEngine* engine, const Clock& clock,
                    absl::Duration timeout);

}  // namespace baton

#endif  // BATON_SERVER_WARM_UP_H_
