#include "tests/simulation/group/simulated_rank.h"

#include <array>

#include "absl/status/status.h"
#include "base/logging.h"

namespace baton {
namespace {

// Forward, draws, and what tells the engine.
constexpr int kTasksPerStep = 3;

constexpr uint64_t kTables = 64;
constexpr std::array<ExpertSlots, kTables> kLayers;

}  // namespace

std::span<const ExpertSlots> TablesOf(uint64_t version) {
  return std::span(kLayers).subspan(version % kTables, 1);
}

SimulatedRank::SimulatedRank(const SimulatedRankOptions& options,
                             SimulatedClock* clock) {
  if (options.hashes_kv) {
    fake_ = std::make_unique<FakeRank>(
        FakeRank::Options{.engine = options.engine,
                          .num_blocks = options.num_blocks},
        clock);
    return;
  }
  pool_ = std::make_unique<HeapKvPool>(options.num_blocks,
                                       LightStepExecutor::kBlockBytes);
  light_ = std::make_unique<LightStepExecutor>(options.engine);
  engine_ = std::make_unique<LLMEngine>(
      options.engine,
      EngineEnvironment{
          .executor = light_.get(), .pool = pool_->get(), .clock = clock});
}

SimulatedRank::~SimulatedRank() {
  while (!engine().idle()) {
    engine().Collect();  // What was submitted and never looked at.
    Abandon();
  }
}

void SimulatedRank::OnLaunch(const StepDecision& decision) {
  in_flight_.push_back(decision.step);
  if (light_ == nullptr) return;
  light_->SetBounds(decision.type == VotedStep::kPrefill
                        ? decision.prefill_tokens
                        : decision.decode_rows,
                    decision.num_drafts, TablesOf(decision.placement_version));
}

void SimulatedRank::RunOldest() {
  in_flight_.pop_front();
  if (light_ != nullptr) return light_->RunOldest(/*abandoned=*/false);
  for (int i = 0; i < kTasksPerStep; ++i) CHECK(fake_->stream().Poll());
}

void SimulatedRank::Abandon() {
  const bool tells = light_ != nullptr && in_flight_.size() % 2 == 1;
  // The device tells, or the group's thread.
  if (!tells)
    engine().EndUnfinished(absl::UnavailableError("the group has ended"));
  while (!in_flight_.empty()) {
    if (light_ == nullptr) {
      RunOldest();
      continue;
    }
    in_flight_.pop_front();
    light_->RunOldest(/*abandoned=*/true);
  }
  engine().Collect();
}

}  // namespace baton
