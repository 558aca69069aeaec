#include "tests/fakes/cuda_stand_in_rank.h"

#include <algorithm>

namespace baton {
namespace {

CudaStepExecutor::Options ExecutorOptions(
    const CudaStandInRank::Options& options) {
  return {.engine = {.max_running_requests = CudaStandInRank::kMaxRunning,
                     .max_batched_tokens = 64,
                     .max_chunk_tokens = 40,
                     .pipeline_depth = options.depth,
                     .num_draft_tokens = options.drafts},
          .num_blocks = options.num_blocks};
}

}  // namespace

CudaStandInRank::CudaStandInRank(const Options& options, const CudaApi* api)
    : options_(options),
      executor_(
          CudaStepExecutor::Create(ExecutorOptions(options), api).value()),
      pool_(options.num_blocks, executor_->info().cache.block_bytes()),
      load_(options.load),
      engine_(ExecutorOptions(options).engine,
              {.executor = executor_.get(),
               .pool = pool_.get(),
               .clock = &clock_,
               .observer = [this](const StepStats& stats) {
                 num_preemptions_ += stats.preemptions;
                 num_drafts_ += stats.drafts_made;
                 num_accepted_ += stats.drafts_accepted[0];
               }}) {
  load_.Start(&engine_, kMaxRunning, options.num_requests);
}

uint64_t CudaStandInRank::CountWrong() const {
  return load_.CountOthers(
      StandInTokensOnCpu(options_.load, options_.num_requests));
}

}  // namespace baton
