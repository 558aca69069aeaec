// One world of the simulation: engines over fakes, whose clients, devices,
// network and clock do random things.
#ifndef BATON_TESTS_SIMULATION_SIMULATED_WORLD_H_
#define BATON_TESTS_SIMULATION_SIMULATED_WORLD_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/loopback_transport.h"
#include "tests/fakes/fake_rank.h"
#include "tests/fakes/recording_token_sink.h"
#include "tests/fakes/simulated_clock.h"
#include "tests/simulation/request_source.h"
#include "tests/simulation/simulation.h"

namespace baton {

// What a world is made of; from a seed.
struct WorldOptions {
  uint64_t seed = 0;
  // Two: requests may be split, prompts to the first, the rest to the second.
  std::vector<FakeRank::Options> ranks;
  RequestSource::Options requests;
  // How often each thing happens.
  uint32_t turn_weight = 1;
  uint32_t poll_weight = 1;
  uint32_t tick_weight = 1;
  uint32_t arrival_weight = 1;
  uint32_t mischief_weight = 1;
  uint32_t max_live = 1;
  // Device tasks and ticks take up to one.
  absl::Duration unit;
  bool loses_messages = false;
  bool corrupts_kv = false;
};

WorldOptions RandomWorld(uint64_t seed);

// What one request got.
struct SimulatedAnswer {
  bool complete = false;
  std::vector<uint32_t> tokens;
  std::vector<float> logprobs;
};

// One thread. Dies of whatever is wrong.
class SimulatedWorld {
 public:
  // Borrows the requests.
  SimulatedWorld(const WorldOptions& options, uint32_t depth,
                 RequestSource* requests);
  ~SimulatedWorld();

  // Until so many steps are committed; then until all is idle.
  void Run(uint32_t steps);

  const SimulationResult& result() const { return result_; }
  // By the request's index; of those that were ever submitted.
  const std::map<uint64_t, SimulatedAnswer>& answers() const {
    return answers_;
  }

 private:
  struct Live;
  // The oldest request of a rank that needs no transfer, and since when.
  struct Oldest {
    const Live* live = nullptr;
    uint64_t since_step = 0;
  };

  void Act();
  void Turn(size_t rank);
  void Poll(size_t rank);
  void Tick();
  void Arrive();
  std::unique_ptr<Live> NewLive(uint64_t index);
  void DoMischief();
  void AbortSome();
  void PreemptOne();
  void SubmitTwin();
  void CorruptKv();
  void Drain();

  // After a turn of its rank.
  void Observe(Live* live, size_t rank, absl::Time turn_start);
  void StartDecoding(Live* live);
  std::vector<Live*> SamplesOf(const Live& first) const;
  void CheckProgress(size_t rank);
  bool HasEnded(const Live& live) const;
  void Judge(const Live& live);
  void JudgeEnd(const Live& live, const GenerationOutcome& outcome);
  void CheckTotals();

  uint64_t StepsOf(size_t rank) const { return ranks_[rank]->steps().size(); }
  uint64_t NumSteps() const;
  bool OneIn(uint32_t n) { return random_() % n == 0; }
  Live* AnyLive();

  const WorldOptions options_;
  RequestSource* const requests_;
  std::mt19937_64 random_;
  SimulatedClock clock_;
  LoopbackNetwork network_;
  std::vector<std::unique_ptr<FakeRank>> ranks_;
  std::array<Oldest, 2> oldest_ = {};
  // In the order of their submission.
  std::vector<std::unique_ptr<Live>> live_;
  std::vector<std::unique_ptr<RecordingTokenSink>> twins_;
  uint64_t next_request_ = 0;
  // Sent by sinks, and those of them that an import brought.
  uint64_t tokens_told_ = 0;
  uint64_t tokens_imported_ = 0;
  std::map<uint64_t, SimulatedAnswer> answers_;
  SimulationResult result_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SIMULATED_WORLD_H_
