// Nor does it matter in which processes the ranks are, and how they talk.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/logging.h"
#include "comm/expert_message.h"
#include "comm/shared_expert_dispatch.h"
#include "comm/ucx_expert_exchange.h"
#include "tests/invariance/expert_group_fixture.h"

namespace baton {
namespace {

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
      CHECK_OK((*mine)->Connect(/*epoch=*/1, addresses));
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

INSTANTIATE_TEST_SUITE_P(Groups, ExpertGroupTest,
                         testing::Values(Group{2, 32, 0}, Group{4, 20, 2},
                                         Group{8, 9, 3}, Group{64, 1, 0},
                                         Group{64, 2, 3}));

}  // namespace
}  // namespace baton
