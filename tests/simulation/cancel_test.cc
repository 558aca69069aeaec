// Aborts and deadlines at random times, over a prefill and a decode engine:
// whatever a request was doing, its slot and its blocks are freed exactly once
// (the allocator dies of a second time, the invariants of a lost block), within
// as many steps as are in flight.
#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "absl/time/time.h"
#include "base/logging.h"
#include "base/sanitizers.h"
#include "comm/loopback_transport.h"
#include "engine/generation_request.h"
#include "engine/llm_engine.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/split_world.h"

namespace baton {
namespace {

struct Variant {
  uint32_t depth = 0;
  uint32_t num_drafts = 0;
  int num_cancels = 0;
};
constexpr Variant kVariants[] = {
    {1, 0, 30'000}, {2, 0, 30'000}, {3, 0, 30'000}, {2, 1, 10'000}};
// Under ASan each takes several times as long.
#ifdef BATON_ASAN
constexpr int kShare = 10;
#else
constexpr int kShare = 1;
#endif
constexpr uint64_t kNumPrompts = 40;
constexpr uint64_t kRequestsPerWorld = 24;

// What the ends of cancelled requests were, and how soon their blocks were
// free.
struct Tally {
  std::array<int, 4> ended_in = {};  // By RequestActivity.
  int cancelled = 0;
  int late = 0;
  std::map<uint64_t, int> steps;

  void CountEnd(const RecordingTokenSink& sink) {
    const absl::Status& status = sink.outcome->status;
    cancelled += absl::IsCancelled(status);
    late += absl::IsDeadlineExceeded(status);
    if (absl::IsCancelled(status) || absl::IsDeadlineExceeded(status)) {
      ++ended_in[static_cast<size_t>(sink.outcome->ended_in)];
    }
  }
  int num_frees() const {
    int sum = 0;
    for (const auto& [steps_passed, count] : steps) sum += count;
    return sum;
  }
  // So many steps at most passed in 99 of 100 cases.
  uint64_t Percentile99() const {
    int left = num_frees() / 100;
    for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
      left -= it->second;
      if (left < 0) return it->first;
    }
    return 0;
  }
};

class CancelTest : public testing::TestWithParam<Variant> {
 protected:
  FakeRank::Options Rank() {
    FakeRank::Options rank;
    rank.engine.pipeline_depth = GetParam().depth;
    rank.engine.num_draft_tokens = GetParam().num_drafts;
    rank.engine.max_running_requests = 2 + Random(6);
    rank.engine.max_chunk_tokens = 8 + Random(60);
    rank.engine.max_batched_tokens = rank.engine.max_chunk_tokens + Random(60);
    rank.model.bytes_per_token = sizeof(uint64_t);
    rank.model.max_context_tokens = 256;
    rank.num_blocks = 6 + Random(20);
    rank.task_time = absl::Microseconds(1 + Random(1500));
    return rank;
  }

  // Of a few prompts, so that what they must give is computed once.
  GenerationRequest Request(uint64_t number, absl::Time now) {
    const uint64_t prompt = number % kNumPrompts;
    GenerationRequest request =
        MakeRequest(prompt, 1 + static_cast<uint32_t>(prompt * 37 % 180), 20);
    request.id.counter = number;
    if (Random(4) == 0) {
      request.deadline = now + absl::Microseconds(Random(30'000));
    }
    return request;
  }

  uint32_t Random(uint32_t below) {
    return static_cast<uint32_t>(random_() % below);
  }

  void RunWorld();
  void CancelSome(SplitWorld& world);
  void Judge(const FakeRank::Options& options, const Split& split);
  void ExpectPrefix(const FakeRank::Options& options,
                    const GenerationRequest& request,
                    const std::vector<uint32_t>& tokens);

  std::mt19937_64 random_{GetParam().depth + 10 * GetParam().num_drafts};
  uint64_t next_request_ = 0;
  // By prompt and sample.
  std::map<std::pair<uint64_t, uint32_t>, std::vector<uint32_t>> expected_;
  Tally tally_;
};

void CancelTest::RunWorld() {
  const FakeRank::Options prefill = Rank();
  const FakeRank::Options decode = Rank();
  SplitWorld world(prefill, decode, {.maps_regions = Random(2) == 0});
  world.network().set_hook([this](auto, auto, auto) {
    return LoopbackFate{.copies = 1, .delay_polls = Random(2)};
  });
  for (uint64_t i = 0; i < kRequestsPerWorld; ++i) {
    world.Prefill(Request(next_request_++, world.clock().Now()),
                  Random(4) == 0 ? 1 + Random(3) : 1);
    for (uint32_t turns = Random(9); turns > 0; --turns) {
      world.Turn();
      if (Random(3) == 0) CancelSome(world);
    }
  }
  // The last ones, too, are cancelled as often as they end by themselves.
  while (!world.idle()) {
    world.Turn();
    if (Random(4) == 0) CancelSome(world);
  }
  world.RunUntilIdle();
  for (FakeRank* rank : {&world.prefill_rank(), &world.decode_rank()}) {
    for (const AbortStats& stats : rank->aborts()) ++tally_.steps[stats.steps];
  }
  for (const Split& split : world.splits()) Judge(decode, split);
}

// As a router does: at both sides, or at one, whose end the other hears of.
void CancelTest::CancelSome(SplitWorld& world) {
  const size_t newest = world.splits().size();
  const Split& victim =
      world
          .splits()[newest - 1 -
                    Random(static_cast<uint32_t>(std::min<size_t>(newest, 6)))];
  std::optional<uint32_t> sample;
  if (Random(3) == 0) sample = Random(3);
  const uint32_t sides = 1 + Random(3);
  if ((sides & 1) != 0) world.prefill().Abort(victim.request.id, sample);
  if ((sides & 2) != 0) world.decode().Abort(victim.request.id, sample);
}

void CancelTest::Judge(const FakeRank::Options& options, const Split& split) {
  ASSERT_TRUE(split.prefill.finished());
  tally_.CountEnd(split.prefill);
  ExpectPrefix(options, split.request, split.prefill.tokens);
  if (!split.decode_submitted) return;
  ASSERT_TRUE(split.decode.finished());
  tally_.CountEnd(split.decode);
  ExpectPrefix(options, split.request, split.decode.tokens);
  for (size_t i = 0; i < split.others.size(); ++i) {
    ASSERT_TRUE(split.others[i].finished());
    tally_.CountEnd(split.others[i]);
    GenerationRequest request = split.request;
    request.sample_index += 1 + static_cast<uint32_t>(i);
    ExpectPrefix(options, request, split.others[i].tokens);
  }
}

void CancelTest::ExpectPrefix(const FakeRank::Options& options,
                              const GenerationRequest& request,
                              const std::vector<uint32_t>& tokens) {
  std::vector<uint32_t>& expected =
      expected_[{request.id.counter % kNumPrompts, request.sample_index}];
  if (expected.empty()) expected = ExpectedOf(options.model, request).tokens;
  ASSERT_LE(tokens.size(), expected.size());
  ASSERT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin()))
      << request.id;
}

INSTANTIATE_TEST_SUITE_P(Variants, CancelTest, testing::ValuesIn(kVariants));

TEST_P(CancelTest, AHundredThousandAtRandomTimesFreeEverythingOnceAndSoon) {
  const int wanted = GetParam().num_cancels / kShare;
  while (tally_.cancelled + tally_.late < wanted && !HasFatalFailure()) {
    RunWorld();
  }
  std::cout << "depth " << GetParam().depth << " drafts "
            << GetParam().num_drafts << ": " << tally_.cancelled
            << " cancelled, " << tally_.late << " late; in the queue, the "
            << "prompt, a transfer, decoding: " << tally_.ended_in[0] << ", "
            << tally_.ended_in[1] << ", " << tally_.ended_in[2] << ", "
            << tally_.ended_in[3] << "; steps until free:";
  for (const auto& [steps, count] : tally_.steps) {
    std::cout << ' ' << steps << ": " << count;
  }
  std::cout << '\n';
  for (const int ends : tally_.ended_in) EXPECT_GT(ends, wanted / 50);
  EXPECT_GT(tally_.late, wanted / 50);
  EXPECT_GT(tally_.num_frees(), wanted / 5);
  EXPECT_LE(tally_.Percentile99(), std::max(2u, GetParam().depth));
}

}  // namespace
}  // namespace baton
