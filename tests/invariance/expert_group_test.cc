// The size of an expert-parallel group, its placement, its processes: none of
// it changes a bit.
#include "tests/invariance/expert_group.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/logging.h"
#include "comm/shared_expert_dispatch.h"
#include "comm/slot_table.h"
#include "comm/testing/random_slot_table.h"
#include "comm/ucx_expert_exchange.h"

namespace baton {
namespace {

constexpr int kJobs = 24;

std::unique_ptr<const LoadedDeepSeekV3> LoadDemo(const GroupOptions& options) {
  LoadOptions load;
  load.folder = "models/tiny-deepseek-v3";
  load.max_rows = static_cast<int>(MaxGroupRows(options));
  load.max_logits_rows = static_cast<int>(MaxGroupLogitsRows(options));
  load.drafter = options.num_drafts > 0;
  auto weights = LoadedDeepSeekV3::Load(load, {});
  CHECK_OK(weights.status());
  return *std::move(weights);
}

// Placements that change from step to step.
class RandomPlacements {
 public:
  RandomPlacements(const ModelRunnerInfo& model, int num_ranks,
                   int slots_per_rank) {
    std::mt19937 random(3);
    for (uint32_t i = 0; i < kVersions * model.num_expert_layers; ++i) {
      tables_.push_back(RandomSlotTable(static_cast<int>(model.num_experts),
                                        num_ranks, slots_per_rank, &random));
    }
    for (const SlotTable& table : tables_) views_.push_back(table.view());
    num_layers_ = model.num_expert_layers;
  }

  std::span<const ExpertSlots> of(uint32_t step) const {
    return std::span(views_).subspan(step % kVersions * num_layers_,
                                     num_layers_);
  }

 private:
  static constexpr uint32_t kVersions = 3;
  std::vector<SlotTable> tables_;
  std::vector<ExpertSlots> views_;
  size_t num_layers_ = 0;
};

struct Group {
  int num_ranks = 1;
  int slots_per_rank = 64;
  uint32_t num_drafts = 0;
};

// Job j is rank j % ranks's, but the last rank has none where there are more.
std::vector<GroupJob> JobsOf(const std::vector<GroupJob>& jobs, int rank,
                             int num_ranks) {
  const size_t busy = num_ranks > 1 ? num_ranks - 1 : 1;
  std::vector<GroupJob> mine;
  for (size_t j = 0; j < jobs.size(); ++j) {
    if (j % busy == static_cast<size_t>(rank)) mine.push_back(jobs[j]);
  }
  return mine;
}

void WriteText(int fd, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  CHECK_EQ(write(fd, &size, sizeof size), static_cast<ssize_t>(sizeof size));
  CHECK_EQ(write(fd, text.data(), size), static_cast<ssize_t>(size));
}

std::string ReadText(int fd) {
  uint32_t size = 0;
  CHECK_EQ(read(fd, &size, sizeof size), static_cast<ssize_t>(sizeof size));
  std::string text(size, '\0');
  CHECK_EQ(read(fd, text.data(), size), static_cast<ssize_t>(size));
  return text;
}

// A child of this process, which must have no threads.
class GroupProcess {
 public:
  // body(in, out): true if all is right.
  explicit GroupProcess(const auto& body) {
    int to_child[2];
    int from_child[2];
    CHECK_EQ(pipe(to_child), 0);
    CHECK_EQ(pipe(from_child), 0);
    pid_ = fork();
    if (pid_ == 0) _exit(body(to_child[0], from_child[1]) ? 0 : 1);
    close(to_child[0]);
    close(from_child[1]);
    out_ = to_child[1];
    in_ = from_child[0];
  }

  std::string Read() const { return ReadText(in_); }
  void Write(const std::string& text) const { WriteText(out_, text); }
  // Once.
  bool IsRight() const {
    int status = 0;
    CHECK_EQ(waitpid(pid_, &status, 0), pid_);
    close(in_);
    close(out_);
    return status == 0;
  }

 private:
  pid_t pid_ = 0;
  int in_ = -1;
  int out_ = -1;
};

class ExpertGroupTest : public testing::TestWithParam<Group> {
 protected:
  ExpertGroupTest() {
    options_.num_drafts = GetParam().num_drafts;
    options_.max_jobs = kJobs;
    weights_ = LoadDemo(options_);
    jobs_ = MixedGroupJobs(kJobs, weights_->info().vocab_size);
    options_.num_steps = StepsFor(jobs_);
    exchange_options_ = {.shape = {.experts = weights_->expert_shape(),
                                   .num_ranks = GetParam().num_ranks,
                                   .slots_per_rank = GetParam().slots_per_rank},
                         .deadline = absl::Minutes(2)};
    expected_ = RunGroupRank(options_, *weights_, nullptr, jobs_);
    placements_ = std::make_unique<RandomPlacements>(
        weights_->info(), GetParam().num_ranks, GetParam().slots_per_rank);
    options_.slots = [this](uint32_t step) { return placements_->of(step); };
  }

  // Whether these are the tokens that a rank of one gives.
  bool AreRight(const std::vector<GroupTokens>& tokens, int rank) const {
    const int num_ranks = GetParam().num_ranks;
    const size_t busy = num_ranks > 1 ? num_ranks - 1 : 1;
    size_t next = 0;
    for (size_t j = 0; j < jobs_.size(); ++j) {
      if (j % busy != static_cast<size_t>(rank)) continue;
      if (next == tokens.size() || tokens[next++] != expected_[j]) return false;
    }
    return next == tokens.size();
  }

  // On a thread each; true if all are right.
  bool RunRanks(auto* exchange, RankRange ranks) const {
    std::atomic<bool> right = true;
    std::vector<std::thread> threads;
    for (int rank = ranks.first; rank < ranks.end; ++rank) {
      threads.emplace_back([&, rank] {
        const std::vector<GroupTokens> tokens =
            RunGroupRank(options_, *weights_, exchange->MakeDispatch(rank),
                         JobsOf(jobs_, rank, GetParam().num_ranks));
        if (!AreRight(tokens, rank)) right = false;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return right;
  }

  std::vector<RankRange> Processes() const {
    const int num_ranks = GetParam().num_ranks;
    const int count = std::min(4, num_ranks);
    std::vector<RankRange> ranks;
    for (int i = 0; i < count; ++i) {
      ranks.push_back({num_ranks * i / count, num_ranks * (i + 1) / count});
    }
    return ranks;
  }

  GroupOptions options_;
  std::unique_ptr<const LoadedDeepSeekV3> weights_;
  std::vector<GroupJob> jobs_;
  ExpertExchangeOptions exchange_options_;
  std::vector<GroupTokens> expected_;
  std::unique_ptr<RandomPlacements> placements_;
};

TEST_P(ExpertGroupTest, RanksAsThreadsGiveTheTokensOfOneRank) {
  auto exchange = SharedExpertExchange::Create(exchange_options_);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  EXPECT_TRUE(RunRanks(exchange->get(), {0, GetParam().num_ranks}));
}

// In up to four processes.
TEST_P(ExpertGroupTest, RanksInProcessesGiveTheTokensOfOneRank) {
  auto exchange = SharedExpertExchange::Create(exchange_options_);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  const std::string path = (*exchange)->path();
  std::vector<GroupProcess> processes;
  for (const RankRange& ranks : Processes()) {
    processes.emplace_back([&](int, int) {
      auto mine = SharedExpertExchange::Open(exchange_options_, path);
      CHECK_OK(mine.status());
      return RunRanks(mine->get(), ranks);
    });
  }
  for (GroupProcess& process : processes) EXPECT_TRUE(process.IsRight());
}

TEST_P(ExpertGroupTest, RanksInProcessesOverUcxGiveTheTokensOfOneRank) {
  const std::vector<RankRange> ranks = Processes();
  std::vector<GroupProcess> processes;
  for (size_t i = 0; i < ranks.size(); ++i) {
    processes.emplace_back([&, i](int in, int out) {
      auto mine =
          UcxExpertExchange::Create({.shape = exchange_options_.shape,
                                     .deadline = exchange_options_.deadline,
                                     .processes = ranks,
                                     .process = static_cast<int>(i)});
      CHECK_OK(mine.status());
      WriteText(out, (*mine)->address());
      std::vector<std::string> addresses;
      for (size_t p = 0; p < ranks.size(); ++p) {
        addresses.push_back(ReadText(in));
      }
      CHECK_OK((*mine)->Connect(addresses));
      const bool right = RunRanks(mine->get(), ranks[i]);
      // Nobody leaves before all have what they wait for.
      WriteText(out, "done");
      ReadText(in);
      return right;
    });
  }
  std::vector<std::string> addresses;
  for (GroupProcess& process : processes) {
    addresses.push_back(process.Read());
  }
  for (GroupProcess& process : processes) {
    for (const std::string& address : addresses) process.Write(address);
  }
  for (GroupProcess& process : processes) EXPECT_EQ(process.Read(), "done");
  for (GroupProcess& process : processes) process.Write("leave");
  for (GroupProcess& process : processes) EXPECT_TRUE(process.IsRight());
}

TEST_P(ExpertGroupTest, AnEndInTheMiddleOfAStepEndsEveryRank) {
  const int num_ranks = GetParam().num_ranks;
  auto exchange = SharedExpertExchange::Create(exchange_options_);
  ASSERT_TRUE(exchange.ok()) << exchange.status();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      GroupOptions options = options_;
      // The others are in step 4, or wait in it.
      options.before_step = [&](uint32_t step) {
        if (rank == 0 && step == 4) (*exchange)->End();
      };
      EXPECT_TRUE(RunGroupRank(options, *weights_,
                               (*exchange)->MakeDispatch(rank),
                               JobsOf(jobs_, rank, num_ranks))
                      .empty());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Groups, ExpertGroupTest,
                         testing::Values(Group{1, 64, 0}, Group{2, 32, 0},
                                         Group{2, 40, 3}, Group{4, 16, 2},
                                         Group{4, 20, 0}, Group{8, 8, 3},
                                         Group{8, 9, 0}, Group{64, 1, 0},
                                         Group{64, 2, 3}));

}  // namespace
}  // namespace baton
