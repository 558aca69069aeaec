// A prefill and a decode engine, with real transfer agents over a network
// inside the process, and the requests over both.
#ifndef BATON_TESTS_FAKES_SPLIT_WORLD_H_
#define BATON_TESTS_FAKES_SPLIT_WORLD_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "base/logging.h"
#include "comm/loopback_transport.h"
#include "engine/engine_options.h"
#include "engine/generation_request.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine_driver.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {

// One request over both engines: what a router does.
struct Split {
  GenerationRequest request;
  RecordingTokenSink prefill;
  RecordingTokenSink decode;
  // Of the samples behind the first.
  std::deque<RecordingTokenSink> others;
  bool decode_submitted = false;
};

// One thread.
class SplitWorld {
 public:
  SplitWorld(const FakeRank::Options& prefill_options,
             const FakeRank::Options& decode_options,
             LoopbackEndpointOptions endpoint = {})
      : options_(decode_options),
        prefill_(prefill_options, &clock_,
                 network_.CreateEndpoint("p", endpoint)),
        decode_(decode_options, &clock_,
                network_.CreateEndpoint("d", endpoint)) {
    prefill_.AddTo(&driver_);
    decode_.AddTo(&driver_);
  }

  Split& Prefill(const GenerationRequest& request, uint32_t num_samples = 1) {
    Split& split = splits_.emplace_back();
    split.request = request;
    split.others.resize(num_samples - 1);
    GenerationRequest prefill = request;
    prefill.mode = RequestMode::kPrefill;
    CHECK_OK(prefill_.engine().Submit(prefill, &split.prefill));
    return split;
  }

  absl::Status Decode(Split& split) {
    GenerationRequest decode = split.request;
    decode.mode = RequestMode::kDecode;
    decode.kv_handle = split.prefill.handle.value();
    decode.num_samples = 1 + static_cast<uint32_t>(split.others.size());
    std::vector<TokenSink*> sinks = {&split.decode};
    for (RecordingTokenSink& other : split.others) sinks.push_back(&other);
    split.decode_submitted = true;
    return decode_.engine().Submit(decode, sinks);
  }

  // Passes handles on as they come.
  void Turn() {
    driver_.Turn();
    for (Split& split : splits_) {
      if (split.decode_submitted || !split.prefill.handle.has_value()) continue;
      CHECK_OK(Decode(split));
    }
  }

  bool idle() { return prefill_.engine().idle() && decode_.engine().idle(); }

  void RunUntilIdle() {
    for (int i = 0; i < 1000000 && !idle(); ++i) Turn();
    ASSERT_TRUE(idle());
    for (FakeRank* rank : {&prefill_, &decode_}) {
      const EngineLoad load = rank->engine().load();
      EXPECT_EQ(load.free_blocks, load.total_blocks);
      EXPECT_EQ(load.exporting_requests + load.importing_requests, 0u);
    }
  }

  void ExpectExact(const Split& split) {
    ExpectFirstExact(split);
    for (size_t i = 0; i < split.others.size(); ++i) ExpectOtherExact(split, i);
  }

  void ExpectFirstExact(const Split& split) {
    const ExpectedTokens expected = ExpectedOf(options_.model, split.request);
    EXPECT_EQ(split.decode.tokens, expected.tokens) << split.request.id;
    EXPECT_EQ(split.decode.logprobs, expected.logprobs) << split.request.id;
    EXPECT_EQ(split.decode.top, expected.top) << split.request.id;
    EXPECT_EQ(split.prefill.tokens, std::vector{expected.tokens.front()});
    EXPECT_EQ(split.prefill.top.at(0), expected.top.at(0));
    EXPECT_EQ(split.prefill.prompt_logprobs, expected.prompt_logprobs);
    EXPECT_EQ(split.prefill.prompt_top, expected.prompt_top);
    EXPECT_TRUE(split.decode.prompt_logprobs.empty());
    EXPECT_EQ(split.prefill.code(), absl::StatusCode::kOk);
    EXPECT_EQ(split.decode.code(), absl::StatusCode::kOk);
  }

  // The whole answer if it ended by itself, else a prefix.
  void ExpectOtherExact(const Split& split, size_t i) {
    GenerationRequest request = split.request;
    request.sample_index += 1 + static_cast<uint32_t>(i);
    ExpectedTokens expected = ExpectedOf(options_.model, request);
    const RecordingTokenSink& sink = split.others[i];
    ASSERT_TRUE(sink.finished());
    if (sink.code() != absl::StatusCode::kOk) {
      ASSERT_LE(sink.tokens.size(), expected.tokens.size());
      expected.tokens.resize(sink.tokens.size());
      expected.logprobs.resize(sink.tokens.size());
      expected.top.resize(sink.tokens.size());
    }
    EXPECT_EQ(sink.tokens, expected.tokens) << request.id << " other " << i;
    EXPECT_EQ(sink.logprobs, expected.logprobs) << request.id;
    EXPECT_EQ(sink.top, expected.top) << request.id;
    EXPECT_TRUE(sink.prompt_logprobs.empty());
  }

  LLMEngine& prefill() { return prefill_.engine(); }
  LLMEngine& decode() { return decode_.engine(); }
  FakeRank& prefill_rank() { return prefill_; }
  FakeRank& decode_rank() { return decode_; }
  EngineDriver& driver() { return driver_; }
  LoopbackNetwork& network() { return network_; }
  SimulatedClock& clock() { return clock_; }
  std::deque<Split>& splits() { return splits_; }

 private:
  const FakeRank::Options options_;
  SimulatedClock clock_;
  LoopbackNetwork network_;
  EngineDriver driver_{&clock_};
  std::deque<Split> splits_;
  FakeRank prefill_;
  FakeRank decode_;
};

}  // namespace baton

#endif  // BATON_TESTS_FAKES_SPLIT_WORLD_H_
