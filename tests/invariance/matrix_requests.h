// The matrix's requests.
#ifndef BATON_TESTS_INVARIANCE_MATRIX_REQUESTS_H_
#define BATON_TESTS_INVARIANCE_MATRIX_REQUESTS_H_

#include <vector>

#include "engine/generation_request.h"
#include "tests/invariance/token_machine.h"

namespace baton {

// 64 that use, between them, all that a request may ask for, stop tokens
// excepted. Some outgrow their blocks.
std::vector<GenerationRequest> MatrixRequests();

// Every third ends where a stop token comes: one that a sample of it drew,
// given none, at a place that differs from request to request. `unstopped`: of
// SamplesAlone.
void AddStops(const std::vector<GeneratedSequence>& unstopped,
              std::vector<GenerationRequest>* requests);

}  // namespace baton

#endif  // BATON_TESTS_INVARIANCE_MATRIX_REQUESTS_H_
