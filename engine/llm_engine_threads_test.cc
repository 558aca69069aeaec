// The engine as servers run it: clients, engine, device and transfer agent on
// threads of their own.
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "comm/loopback_transport.h"
#include "engine/cpu_device_stream.h"
#include "engine/cpu_step_executor.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_model_runner.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/recording_token_sink.h"

namespace baton {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// absl::Notification's own lock is one that ThreadSanitizer does not see.
class Event {
 public:
  void Set() {
    absl::MutexLock lock(&mutex_);
    set_ = true;
  }
  bool Wait() {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&set_), kPatience);
  }

 private:
  absl::Mutex mutex_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
};

// Hands the handle and the end to the client's thread.
class WaitingSink final : public TokenSink {
 public:
  void OnKvHandle(const KvHandle& handle) override {
    recorded_.OnKvHandle(handle);
    handle_.Set();
  }
  void OnProgress(uint32_t computed) override {
    recorded_.OnProgress(computed);
  }
  void OnPromptLogprobs(const ScoredTokens& tokens) override {
    recorded_.OnPromptLogprobs(tokens);
  }
  void OnTokens(const ScoredTokens& tokens) override {
    recorded_.OnTokens(tokens);
  }
  void OnFinished(const GenerationOutcome& outcome) override {
    recorded_.OnFinished(outcome);
    end_.Set();
  }

  const KvHandle& WaitForHandle() {
    CHECK(handle_.Wait());
    return *recorded_.handle;
  }
  const RecordingTokenSink& WaitForEnd() {
    CHECK(end_.Wait());
    return recorded_;
  }

 private:
  RecordingTokenSink recorded_;
  Event handle_;
  Event end_;
};

const EngineOptions kOptions = {.max_batched_tokens = 64,
                                .max_chunk_tokens = 40};

class ThreadedRank {
 public:
  ThreadedRank(uint32_t num_blocks, std::unique_ptr<Transport> transport)
      : model_({}),
        executor_(kOptions,
                  {.model = &model_, .stream = &stream_, .clock = &clock_}),
        transport_(std::move(transport)),
        pool_(
            transport_
                ->AllocateRegion(KvPool::RegionBytes(num_blocks, BlockBytes()))
                .value(),
            num_blocks, BlockBytes()),
        agent_({.fingerprint = model_.info().fingerprint}, transport_.get(),
               &pool_, &clock_, [this](KvTransferEvent event) {
                 engine_->OnTransferEvent(std::move(event));
               }) {
    model_.BindKvPool(&pool_);
    engine_ = std::make_unique<LLMEngine>(
        kOptions, EngineEnvironment{.executor = &executor_,
                                    .pool = &pool_,
                                    .transfer = &agent_,
                                    .clock = &clock_});
    threads_.emplace_back([this] { RunEngine(); });
    threads_.emplace_back([this] {
      while (!over_) {
        if (!stream_.Poll()) stream_.WaitForTask(kPatience);
      }
    });
    threads_.emplace_back([this] {
      while (!over_) {
        if (!agent_.Poll()) agent_.Wait(absl::Milliseconds(100));
      }
    });
  }

  ~ThreadedRank() {
    draining_ = true;
    engine_->Wake();
    threads_[0].join();  // Ends when the engine is idle.
    over_ = true;
    stream_.Wake();
    agent_.Wake();
    threads_[1].join();
    threads_[2].join();
  }

  LLMEngine& engine() { return *engine_; }

 private:
  size_t BlockBytes() const { return model_.info().cache.block_bytes(); }

  void RunEngine() {
    while (!draining_ || !engine_->idle()) {
      if (!engine_->Advance()) engine_->WaitForWork(absl::Milliseconds(100));
    }
    engine_->CheckInvariants();
  }

  MonotonicClock clock_;
  FakeModelRunner model_;
  CpuDeviceStream stream_;
  CpuStepExecutor executor_;
  std::unique_ptr<Transport> transport_;
  KvPool pool_;
  KvTransferAgent agent_;
  std::unique_ptr<LLMEngine> engine_;
  std::atomic<bool> draining_ = false;
  std::atomic<bool> over_ = false;
  std::vector<std::thread> threads_;
};

// An aborted request ends so, or was quicker; all others are right.
void SubmitAndMayAbort(LLMEngine* engine, uint64_t counter, bool abort) {
  const GenerationRequest request =
      MakeRequest(counter, 1 + counter * 13 % 150, 1 + counter * 7 % 40);
  WaitingSink sink;
  CHECK_OK(engine->Submit(request, &sink));
  if (abort) engine->Abort(request.id, std::nullopt);
  const RecordingTokenSink& recorded = sink.WaitForEnd();
  if (!abort || recorded.code() == absl::StatusCode::kOk) {
    EXPECT_EQ(recorded.tokens, ExpectedOf({}, request).tokens);
  } else {
    EXPECT_EQ(recorded.code(), absl::StatusCode::kCancelled);
  }
}

TEST(LLMEngineThreadsTest, ManyClientsSubmitAndAbortAtOnce) {
  constexpr uint64_t kClients = 4, kRequests = 40;
  LoopbackNetwork network;
  ThreadedRank rank(12, network.CreateEndpoint("u", {}));
  std::vector<std::thread> clients;
  for (uint64_t client = 0; client < kClients; ++client) {
    clients.emplace_back([&rank, client] {
      for (uint64_t i = 0; i < kRequests; ++i) {
        SubmitAndMayAbort(&rank.engine(), client * kRequests + i,
                          i % 3 == client % 3);
        EXPECT_LE(rank.engine().load().free_blocks, 12u);
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST(LLMEngineThreadsTest, TransfersRunBesideBothEngines) {
  constexpr uint64_t kClients = 3, kRequests = 12;
  LoopbackNetwork network;
  ThreadedRank prefill(16, network.CreateEndpoint("p", {}));
  ThreadedRank decode(12, network.CreateEndpoint("d", {}));
  std::vector<std::thread> clients;
  for (uint64_t client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      for (uint64_t i = 0; i < kRequests; ++i) {
        GenerationRequest request =
            MakeRequest(client * kRequests + i, 1 + i * 31 % 200, 1 + i % 20);
        const ExpectedTokens expected = ExpectedOf({}, request);
        WaitingSink first, rest;
        request.mode = RequestMode::kPrefill;
        CHECK_OK(prefill.engine().Submit(request, &first));
        request.mode = RequestMode::kDecode;
        request.kv_handle = first.WaitForHandle();
        CHECK_OK(decode.engine().Submit(request, &rest));
        EXPECT_EQ(rest.WaitForEnd().tokens, expected.tokens);
        EXPECT_EQ(first.WaitForEnd().code(), absl::StatusCode::kOk);
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace baton
