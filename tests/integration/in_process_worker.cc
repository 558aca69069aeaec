#include "tests/integration/in_process_worker.h"

#include <utility>

#include "engine/engine_options.h"
#include "server/worker_for_test.h"

namespace baton {
namespace {

TestWorker::Options WorkerOptions(const InProcessWorker::Options& options) {
  TestWorker::Options out;
  out.engine.max_running_requests = options.max_running_requests;
  out.engine.max_waiting_requests = options.max_waiting_requests;
  out.engine.num_draft_tokens = kMaxDraftTokens;
  out.engine.pipeline_depth = 2;
  out.num_blocks = options.num_blocks;
  out.model = {.vocab_size = options.info.vocab_size(),
               .max_context_tokens = options.info.max_context_tokens(),
               .bytes_per_token = 8,
               .right_drafts = 256};
  out.streams = options.streams;
  out.info = options.info;
  return out;
}

}  // namespace

InProcessWorker::InProcessWorker(const Options& options)
    : worker_(std::make_unique<TestWorker>(WorkerOptions(options))) {}

InProcessWorker::~InProcessWorker() = default;

const std::string& InProcessWorker::address() const {
  return worker_->address();
}

StreamBudget& InProcessWorker::streams() { return worker_->streams(); }

uint64_t InProcessWorker::num_calls() const { return worker_->gate().inside(); }

uint32_t InProcessWorker::num_paused() const {
  return worker_->engine().load().paused_requests;
}

bool InProcessWorker::is_busy() const {
  return worker_->engine().load().inflight_tokens > 0;
}

}  // namespace baton
