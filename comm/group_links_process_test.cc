// Groups of real processes that are killed and stopped. Prints how long it
// takes to notice and to form again.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "comm/testing/peer_program.h"

namespace baton {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(60);
constexpr uint32_t kProcesses = 4;
constexpr uint32_t kLocalRanks = 16;
// No port that a connection gets by itself.
constexpr char kLeader[] = "127.0.0.1:17480";

// A group_peer as a child.
class Peer {
 public:
  explicit Peer(uint32_t process)
      : program_({"comm/testing/group_peer",
                  std::to_string(kProcesses * kLocalRanks),
                  std::to_string(process * kLocalRanks),
                  std::to_string(kLocalRanks), kLeader}) {}

  void Signal(int signal) { program_.Signal(signal); }
  void Suspect(uint64_t epoch, uint32_t rank) {
    program_.WriteLine(std::to_string(epoch) + " " + std::to_string(rank));
  }

  int output() const { return program_.output(); }
  void Read() {
    char bytes[256];
    const ssize_t size = read(output(), bytes, sizeof bytes);
    if (size > 0) text_.append(bytes, static_cast<size_t>(size));
    for (size_t end; (end = text_.find('\n')) != std::string::npos;) {
      Parse(text_.substr(0, end));
      text_.erase(0, end + 1);
    }
  }
  // Of the epoch that runs here; 0 if none does.
  uint64_t epoch() const { return epoch_; }
  // Of the last epoch that ended here.
  uint64_t ended_epoch() const { return ended_epoch_; }
  const std::string& named() const { return named_; }

 private:
  void Parse(const std::string& line) {
    const size_t space = line.find(' ') + 1;
    const uint64_t epoch = std::stoull(line.substr(space));
    if (line.starts_with("started")) {
      EXPECT_GT(epoch, ended_epoch_);
      epoch_ = epoch;
      return;
    }
    epoch_ = 0;
    ended_epoch_ = epoch;
    named_ = line.substr(line.find(' ', space) + 1);
  }

  PeerProgram program_;
  std::string text_;
  uint64_t epoch_ = 0;
  uint64_t ended_epoch_ = 0;
  std::string named_;
};

// Times of one thing that happened often.
class Times {
 public:
  void Add(absl::Duration time) { times_.push_back(time); }
  std::string Summary() {
    std::sort(times_.begin(), times_.end());
    return "median " + absl::FormatDuration(times_[times_.size() / 2]) +
           " longest " + absl::FormatDuration(times_.back());
  }

 private:
  std::vector<absl::Duration> times_;
};

class GroupLinksProcessTest : public ::testing::Test {
 protected:
  GroupLinksProcessTest() {
    for (uint32_t i = 0; i < kProcesses; ++i) {
      peers_.push_back(std::make_unique<Peer>(i));
    }
  }

  // Reads what the processes say until `done`; the time that took.
  absl::Duration Until(const std::function<bool()>& done) {
    const absl::Time start = absl::Now();
    while (!done() && absl::Now() < start + kDeadline) {
      std::vector<pollfd> polls;
      for (const auto& peer : peers_) {
        polls.push_back({peer ? peer->output() : -1, POLLIN, 0});
      }
      poll(polls.data(), polls.size(), 1000);
      for (uint32_t i = 0; i < kProcesses; ++i) {
        if (polls[i].revents & POLLIN) peers_[i]->Read();
      }
    }
    EXPECT_TRUE(done());
    return absl::Now() - start;
  }
  absl::Duration UntilAllRun() {
    return Until([this] {
      return std::all_of(peers_.begin(), peers_.end(), [this](const auto& p) {
        return p->epoch() != 0 && p->epoch() == peers_[0]->epoch();
      });
    });
  }
  // The others know that `epoch` has ended.
  absl::Duration UntilOthersEnd(uint32_t but, uint64_t epoch) {
    return Until([this, but, epoch] {
      for (uint32_t i = 0; i < kProcesses; ++i) {
        if (i != but && peers_[i]->ended_epoch() < epoch) return false;
      }
      return true;
    });
  }
  void ExpectOthersName(uint32_t process, const std::string& ranks) {
    for (uint32_t i = 0; i < kProcesses; ++i) {
      if (i == process) continue;
      EXPECT_EQ(peers_[i]->named(), ranks) << i;
    }
  }
  static std::string RanksOf(uint32_t process) {
    return std::to_string(process * kLocalRanks) + ".." +
           std::to_string((process + 1) * kLocalRanks - 1);
  }
  void Kill(uint32_t process) {
    peers_[process]->Signal(SIGKILL);
    peers_[process].reset();
  }
  void StartAgain(uint32_t process) {
    peers_[process] = std::make_unique<Peer>(process);
  }

  // Kills what `choose` says, again and again.
  void KillOften(const std::string& what,
                 const std::function<uint32_t()>& choose) {
    constexpr int kKills = 20;
    Times notice, form;
    UntilAllRun();
    for (int i = 0; i < kKills; ++i) {
      const uint64_t epoch = peers_[0]->epoch();
      const uint32_t killed = choose();
      const absl::Time start = absl::Now();
      Kill(killed);
      UntilOthersEnd(killed, epoch);
      notice.Add(absl::Now() - start);
      ExpectOthersName(killed, RanksOf(killed));
      StartAgain(killed);
      form.Add(UntilAllRun());
      EXPECT_GT(peers_[0]->epoch(), epoch);
    }
    std::printf("%s killed %d times: noticed by all, %s; formed again, %s\n",
                what.c_str(), kKills, notice.Summary().c_str(),
                form.Summary().c_str());
  }

  std::mt19937_64 random_{1};
  std::vector<std::unique_ptr<Peer>> peers_;
};

TEST_F(GroupLinksProcessTest, AKilledMemberIsNamedByAllAndMayReturn) {
  KillOften("a member", [this] { return 1 + random_() % (kProcesses - 1); });
}

TEST_F(GroupLinksProcessTest, AKilledLeaderIsNamedByAllAndMayReturn) {
  KillOften("the leader", [] { return 0u; });
}

TEST_F(GroupLinksProcessTest, KillsWhileTheGroupFormsOnlyDelayIt) {
  UntilAllRun();
  std::vector<uint32_t> order = {0, 1, 2, 3};
  for (int i = 0; i < 10; ++i) {
    const uint64_t epoch = peers_[0]->epoch();
    std::shuffle(order.begin(), order.end(), random_);
    Kill(order[0]);
    // The last one is never killed: the group has begun to form again.
    Until([&] { return peers_[order[3]]->ended_epoch() >= epoch; });
    for (const int next : {0, 1, 2}) {
      StartAgain(order[next]);
      if (next < 2) Kill(order[next + 1]);
    }
    UntilAllRun();
    EXPECT_GT(peers_[0]->epoch(), epoch);
  }
}

TEST_F(GroupLinksProcessTest, AStoppedProcessIsFencedAndJoinsAgain) {
  UntilAllRun();
  for (const uint32_t stopped : {2u, 0u}) {
    const uint64_t epoch = peers_[0]->epoch();
    peers_[stopped]->Signal(SIGSTOP);
    peers_[1]->Suspect(epoch, stopped * kLocalRanks + 3);
    const absl::Duration noticed = UntilOthersEnd(stopped, epoch);
    const std::string rank = std::to_string(stopped * kLocalRanks + 3);
    ExpectOthersName(stopped, rank);
    EXPECT_EQ(peers_[stopped]->epoch(), epoch);
    peers_[stopped]->Signal(SIGCONT);
    const absl::Duration formed = UntilAllRun();
    EXPECT_EQ(peers_[stopped]->named(), rank);
    EXPECT_GT(peers_[0]->epoch(), epoch);
    std::printf(
        "process %u stopped: ended everywhere after %s; formed again "
        "%s after it went on\n",
        stopped, absl::FormatDuration(noticed).c_str(),
        absl::FormatDuration(formed).c_str());
  }
}

TEST_F(GroupLinksProcessTest, AStopThatNobodySuspectsIsTolerated) {
  UntilAllRun();
  const uint64_t epoch = peers_[0]->epoch();
  peers_[1]->Signal(SIGSTOP);
  peers_[1]->Signal(SIGCONT);
  // An end that comes later names who is suspected later.
  peers_[1]->Suspect(epoch, 33);
  Until([&] { return peers_[1]->ended_epoch() == epoch; });
  UntilOthersEnd(1, epoch);
  ExpectOthersName(1, "33");
}

}  // namespace
}  // namespace baton
