// From a worker's shape to the options of its engine.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_FAKE_RANK_OPTIONS_H_
#define BATON_TESTS_SIMULATION_SYSTEM_FAKE_RANK_OPTIONS_H_

#include "tests/fakes/fake_model_runner.h"
#include "tests/fakes/fake_rank.h"
#include "tests/simulation/system/worker_shape.h"

namespace baton {

inline FakeModelRunner::Options ToModelOptions(const ModelShape& shape) {
  return {.vocab_size = shape.vocab_size,
          .max_context_tokens = shape.max_context_tokens,
          // One word: the hash of a row is no longer than its content.
          .bytes_per_token = sizeof(uint64_t),
          .right_drafts = shape.right_drafts};
}

inline FakeRank::Options ToRankOptions(const WorkerShape& shape) {
  FakeRank::Options rank;
  rank.engine.max_running_requests = shape.max_running_requests;
  rank.engine.max_waiting_requests = shape.max_waiting_requests;
  rank.engine.max_chunk_tokens = shape.max_chunk_tokens;
  rank.engine.max_batched_tokens = shape.max_batched_tokens;
  rank.engine.decode_steps_per_prefill = shape.decode_steps_per_prefill;
  rank.engine.pipeline_depth = shape.pipeline_depth;
  rank.engine.num_draft_tokens = shape.num_draft_tokens;
  rank.model = ToModelOptions(shape.model);
  rank.num_blocks = shape.num_blocks;
  rank.transfer.lease = shape.lease;
  rank.transfer.import_timeout = shape.import_timeout;
  rank.transfer.refresh_interval = shape.refresh_interval;
  rank.transfer.drain_timeout = shape.drain_timeout;
  rank.transfer.max_blocks_in_flight = shape.max_blocks_in_flight;
  return rank;
}

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_FAKE_RANK_OPTIONS_H_
