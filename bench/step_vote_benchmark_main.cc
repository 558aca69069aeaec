// What one vote takes on one host: from a process's ballot to the decision,
// over shared memory, with waits that block. Beside it a barrier of as many
// members, in the same run: nobody can know that all have voted any sooner.
// Nothing else runs, so the members' own CPU time is in it, on however few
// cores they share.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/logging.h"
#include "bench/host_members.h"
#include "bench/statistics.h"
#include "comm/group_barrier.h"
#include "comm/shared_group_channel.h"
#include "comm/step_vote.h"

namespace baton {
namespace {

constexpr int kRuns = 5;

double NowMicroseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

// Of the channels of all members, where those are threads.
using SharedMemoryOfGroup = std::shared_ptr<SharedGroupMemory>;

// Votes one step after another, for so many ranks at once.
class Voter {
 public:
  Voter(SharedMemoryOfGroup memory, uint32_t process, uint32_t num_processes,
        uint32_t num_ranks)
      : process_(process),
        num_processes_(num_processes),
        num_ranks_(num_ranks),
        channel_(std::move(memory), process, num_processes),
        vote_({.epoch = EpochId(1),
               .num_processes = num_processes,
               .process = process}) {}

  void Vote() {
    Ballot all;
    for (uint32_t i = 0; i < num_ranks_; ++i) {
      all.Merge({.num_ranks = 1, .decode_rows = i + 1});
    }
    const std::string bytes = EncodeVote(vote_.Post(all));
    for (uint32_t p = 0; p < num_processes_; ++p) {
      if (p != process_) channel_.Send(p, bytes);
    }
    while (!vote_.is_complete()) {
      channel_.Wait(absl::Minutes(1));
      channel_.Receive(&received_);
      for (const ChannelMessage& message : received_) {
        CHECK(vote_.OnMessage(*DecodeVote(message.bytes)));
      }
    }
    CHECK(vote_.Decide()->type == VotedStep::kDecode);
  }

 private:
  const uint32_t process_;
  const uint32_t num_processes_;
  const uint32_t num_ranks_;
  SharedGroupChannel channel_;
  StepVote vote_;
  std::vector<ChannelMessage> received_;
};

// p50 and p99 of a round, in microseconds; each the best of the runs so far.
struct RoundTimes {
  double p50 = 1e30;
  double p99 = 1e30;
  void TakeBest(const RoundTimes& other) {
    p50 = std::min(p50, other.p50);
    p99 = std::min(p99, other.p99);
  }
};

// make(member), called on its own thread, gives what it does in each round.
template <typename MakeRound>
RoundTimes Measure(MemberKind kind, int num_members, const MakeRound& make) {
  const int rounds = std::max(200, 20'000 / num_members);
  const int warm_up = rounds / 10;
  const SharedArray<double> times(static_cast<size_t>(num_members * rounds));
  RunMembers(kind, num_members, [&](int member) {
    const auto round = make(member);
    for (int i = 0; i < warm_up; ++i) round();
    double* const mine = &times.values()[static_cast<size_t>(member * rounds)];
    for (int i = 0; i < rounds; ++i) {
      const double start = NowMicroseconds();
      round();
      mine[i] = NowMicroseconds() - start;
    }
  });
  const std::vector<double> all(times.values().begin(), times.values().end());
  return {Quantile(all, 0.5), Quantile(all, 0.99)};
}

RoundTimes MeasureVote(MemberKind kind, int num_processes, int num_ranks) {
  const auto processes = static_cast<uint32_t>(num_processes);
  const auto ranks_of_each = static_cast<uint32_t>(num_ranks / num_processes);
  auto created = SharedGroupMemory::Create(processes);
  CHECK_OK(created.status());
  const SharedMemoryOfGroup memory = *std::move(created);
  return Measure(kind, num_processes, [&](int member) {
    auto voter = std::make_unique<Voter>(memory, static_cast<uint32_t>(member),
                                         processes, ranks_of_each);
    return [voter = std::move(voter)] { voter->Vote(); };
  });
}

RoundTimes MeasureGroupBarrier(MemberKind kind, int num_members) {
  const SharedArray<GroupBarrierState> state(1);
  const SharedArray<GroupBarrierArrivals> arrivals(
      static_cast<size_t>(num_members));
  GroupBarrier barrier({}, state.values().data(), arrivals.values());
  return Measure(kind, num_members, [&](int member) {
    return [&barrier, member] { CHECK(barrier.Arrive(member)); };
  });
}

RoundTimes MeasureStdBarrier(int num_members) {
  std::barrier barrier(num_members);
  return Measure(MemberKind::kThread, num_members, [&](int) {
    return [&barrier] { barrier.arrive_and_wait(); };
  });
}

struct Row {
  std::string name;
  std::function<RoundTimes(int num_ranks)> measure;
  RoundTimes best = {};
};

std::vector<Row> Rows() {
  using enum MemberKind;
  return {
      {"std::barrier, a thread each", MeasureStdBarrier},
      {"GroupBarrier, a thread each",
       [](int ranks) { return MeasureGroupBarrier(kThread, ranks); }},
      {"GroupBarrier, a process each",
       [](int ranks) { return MeasureGroupBarrier(kProcess, ranks); }},
      {"GroupBarrier, 4 processes",
       [](int) { return MeasureGroupBarrier(kProcess, 4); }},
      {"vote, a rank on each thread",
       [](int ranks) { return MeasureVote(kThread, ranks, ranks); }},
      {"vote, a rank in each process",
       [](int ranks) { return MeasureVote(kProcess, ranks, ranks); }},
      {"vote, ranks merged in 4 processes",
       [](int ranks) { return MeasureVote(kProcess, 4, ranks); }},
      {"vote, ranks merged in 1 process",
       [](int ranks) { return MeasureVote(kProcess, 1, ranks); }},
  };
}

void MeasureAll(int num_ranks) {
  std::vector<Row> rows = Rows();
  for (int run = 0; run < kRuns; ++run) {
    for (Row& row : rows) row.best.TakeBest(row.measure(num_ranks));
  }
  for (const Row& row : rows) {
    std::printf("| %d | %s | %.1f | %.1f |\n", num_ranks, row.name.c_str(),
                row.best.p50, row.best.p99);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace baton

int main() {
  std::printf("| ranks | what | p50 us | p99 us |\n|---|---|---|---|\n");
  for (const int num_ranks : {8, 32, 128}) baton::MeasureAll(num_ranks);
  return 0;
}
