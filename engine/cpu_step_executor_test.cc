#include "engine/cpu_step_executor.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/cpu_device_stream.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_model_runner.h"
#include "tests/fakes/heap_kv_pool.h"
#include "tests/fakes/simulated_clock.h"

namespace baton {
namespace {

constexpr EngineOptions Options(uint32_t num_drafts) {
  EngineOptions options;
  options.max_running_requests = 2;
  options.max_batched_tokens = 100;
  options.num_draft_tokens = num_drafts;
  return options;
}

// One sequence in slot 1, with a prompt of 3 and blocks 0 and 1.
class CpuStepExecutorTest : public testing::TestWithParam<uint32_t> {
 protected:
  CpuStepExecutorTest()
      : model_({.drafter = GetParam() > 0, .right_drafts = 128}),
        pool_(3, model_.info().cache.block_bytes()),
        executor_(Options(GetParam()), {.model = &model_,
                                        .pool = pool_.get(),
                                        .stream = &stream_,
                                        .clock = &clock_}) {
    model_.BindKvPool(pool_.get());
    output_.samples.resize(2);
    output_.top.resize(2 * (1 + kMaxDraftTokens) * kMaxTopLogprobs);
    output_.hidden.resize(2 * model_.info().hidden_size);
  }

  void Run(StepRows rows, std::vector<uint32_t> token_ids) {
    rows.slot = 1;
    rows.end_position = 100;
    rows.num_drafts = GetParam();
    StepInput input = {.token_ids = std::move(token_ids),
                       .block_tables = {0, 1},
                       .rows = {rows}};
    if (rows.sample == 0) input.samples.resize(1);
    executor_.LaunchForward(&input, &output_);
    const DeviceEvent done = executor_.LaunchSample(&input, &output_);
    EXPECT_FALSE(executor_.HasFired(done));
    while (stream_.Poll()) {
    }
    EXPECT_TRUE(executor_.HasFired(done));
    if (rows.sample < 0) return;
    const SampleOutput& sample = output_.samples[0];
    for (uint32_t i = 0; i < sample.num_tokens; ++i) {
      tokens_.push_back(sample.tokens[i].token_id);
    }
  }

  SimulatedClock clock_;
  CpuDeviceStream stream_;
  FakeModelRunner model_;
  HeapKvPool pool_;
  CpuStepExecutor executor_;
  StepOutput output_;
  std::vector<uint32_t> tokens_;
};

INSTANTIATE_TEST_SUITE_P(Drafts, CpuStepExecutorTest,
                         testing::Values(0u, 1u, 3u, 5u));

// The reference: each token from the host, one row a step.
std::vector<uint32_t> TokensWithoutSlots(uint32_t count) {
  FakeModelRunner model({});
  HeapKvPool pool(2, model.info().cache.block_bytes());
  model.BindKvPool(pool.get());
  SimulatedClock clock;
  CpuDeviceStream stream;
  CpuStepExecutor executor(
      Options(0), {.model = &model, .stream = &stream, .clock = &clock});
  std::vector<uint32_t> tokens = {4, 5, 6};
  StepOutput output;
  output.samples.resize(1);
  output.top.resize(kMaxTopLogprobs);
  for (uint32_t position = 0; tokens.size() < 3 + count; ++position) {
    StepInput input = {
        .token_ids = {tokens[position]},
        .block_tables = {0, 1},
        .rows = {
            {.first_position = position, .num_rows = 1, .end_position = 100}}};
    if (position + 1 == tokens.size()) {
      input.rows[0].sample = 0;
      input.samples.resize(1);
    }
    executor.LaunchForward(&input, &output);
    executor.LaunchSample(&input, &output);
    while (stream.Poll()) {
    }
    if (input.samples.empty()) continue;
    tokens.push_back(output.samples[0].tokens[0].token_id);
  }
  return {tokens.begin() + 3, tokens.end()};
}

TEST_P(CpuStepExecutorTest, SlotsCarryASequenceFromStepToStep) {
  Run({.first_position = 0, .num_rows = 2}, {4, 5});
  Run({.first_position = 2, .num_rows = 1, .sample = 0}, {6});
  EXPECT_EQ(tokens_.size(), 1u);
  while (tokens_.size() < 40) {
    Run({.source = RowSource::kDevice, .num_rows = 1 + GetParam(), .sample = 0},
        {});
  }
  const std::vector<uint32_t> expected =
      TokensWithoutSlots(static_cast<uint32_t>(tokens_.size()));
  EXPECT_EQ(tokens_, expected);
}

TEST_P(CpuStepExecutorTest, OnlyAStepWithNoneBehindItWakesTheEngine) {
  int num_wakes = 0;
  executor_.SetAfterStep(
      {[](void* count) { ++*static_cast<int*>(count); }, &num_wakes});
  const StepInput nothing;
  for (const int expected : {1, 2}) {
    for (int step = 0; step < 2; ++step) {
      executor_.LaunchForward(&nothing, &output_);
      executor_.LaunchSample(&nothing, &output_);
    }
    while (stream_.Poll()) {
    }
    EXPECT_EQ(num_wakes, expected);
  }
}

TEST_P(CpuStepExecutorTest, ASequenceGoesOnBehindABlockOfAnother) {
  std::vector<uint32_t> prompt(66);
  std::iota(prompt.begin(), prompt.end(), 0);
  for (uint32_t& token : prompt) token %= 64;
  const auto run = [&](uint32_t slot, std::vector<uint32_t> blocks,
                       uint32_t first) {
    StepInput input = {
        .token_ids = {prompt.begin() + first, prompt.end()},
        .block_tables = std::move(blocks),
        .rows = {{.slot = slot,
                  .first_position = first,
                  .num_rows = static_cast<uint32_t>(prompt.size()) - first,
                  .end_position = 100,
                  .num_drafts = GetParam(),
                  .sample = 0}}};
    input.samples.resize(1);
    executor_.LaunchForward(&input, &output_);
    executor_.LaunchSample(&input, &output_);
    while (stream_.Poll()) {
    }
    return output_.samples[0].tokens[0].token_id;
  };
  const uint32_t token = run(0, {0, 1}, 0);
  // Something else leaves its state in the other's slot. Then the state must
  // come from the block's tail: the fake's drafter dies of any other one.
  Run({.first_position = 0, .num_rows = 2, .sample = -1}, {4, 5});
  EXPECT_EQ(run(0, {0, 1}, 0), token);
  EXPECT_EQ(run(1, {0, 2}, 64), token);
}

TEST_P(CpuStepExecutorTest, AStateFromElsewhereGoesOnWhereItWas) {
  // The whole prompt here, then its state from the output as if imported.
  StepInput input = {.token_ids = {4, 5, 6},
                     .block_tables = {0, 1},
                     .rows = {{.num_rows = 3, .end_position = 3, .sample = 0}}};
  input.samples.resize(1);
  input.samples[0].wants_hidden = true;
  executor_.LaunchForward(&input, &output_);
  executor_.LaunchSample(&input, &output_);
  while (stream_.Poll()) {
  }
  tokens_.push_back(output_.samples[0].tokens[0].token_id);
  const std::vector<float> hidden(
      output_.hidden.begin(),
      output_.hidden.begin() + model_.info().drafter_hidden_size());
  // Dies in FakeModelRunner::Draft if it is not of the prompt's last position.
  Run({.first_position = 3,
       .num_rows = 1,
       .sample = 0,
       .hidden = GetParam() > 0 ? hidden.data() : nullptr},
      {tokens_[0]});
  Run({.source = RowSource::kDevice, .num_rows = 1 + GetParam(), .sample = 0},
      {});
  EXPECT_EQ(tokens_, TokensWithoutSlots(static_cast<uint32_t>(tokens_.size())));
}

}  // namespace
}  // namespace baton
