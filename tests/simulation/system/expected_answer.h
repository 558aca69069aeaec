// What a request must get, computed without any engine.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_EXPECTED_ANSWER_H_
#define BATON_TESTS_SIMULATION_SYSTEM_EXPECTED_ANSWER_H_

#include <cstdint>
#include <vector>

#include "proto/baton/v1/worker.pb.h"
#include "tests/simulation/system/worker_shape.h"

namespace baton {

struct ExpectedAnswer {
  std::vector<float> prompt_logprobs;
  std::vector<uint32_t> tokens;
  std::vector<float> logprobs;
};

// Of the request's first sample.
ExpectedAnswer ExpectedAnswerOf(const ModelShape& model,
                                const v1::WorkerRequest& request);

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_EXPECTED_ANSWER_H_
