#include "server/router/worker_discovery.h"

#include <sys/stat.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kDeadline = absl::Seconds(60);

// What was told last, in one line, and the log.
class Told {
 public:
  void Set(const std::vector<WorkerAddress>& workers) {
    absl::MutexLock lock(&mutex_);
    text_.clear();
    for (const WorkerAddress& worker : workers) text_ += worker.address + " ";
    ++times_;
  }
  bool Becomes(const std::string& text) {
    absl::MutexLock lock(&mutex_);
    const auto is_it = [this, &text]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return text_ == text;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&is_it), kDeadline);
  }
  void Log(const std::string& line) {
    absl::MutexLock lock(&mutex_);
    log_.push_back(line);
  }
  // The next line of the log.
  std::string AwaitLine() {
    absl::MutexLock lock(&mutex_);
    const auto has_line = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !log_.empty();
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&has_line), kDeadline)) {
      return "no line";
    }
    std::string line = log_.front();
    log_.pop_front();
    return line;
  }
  std::string text() const {
    absl::MutexLock lock(&mutex_);
    return text_;
  }
  int times() const {
    absl::MutexLock lock(&mutex_);
    return times_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> log_ ABSL_GUARDED_BY(mutex_);
  int times_ ABSL_GUARDED_BY(mutex_) = 0;
};

class FakeDns {
 public:
  void Set(absl::StatusOr<std::vector<std::string>> answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  // Until so many look-ups have begun and ended.
  void AwaitLookUps(int count) {
    absl::MutexLock lock(&mutex_);
    const int end = num_begun_ + count + 1;
    const auto begun = [this, end]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return num_begun_ >= end;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&begun), kDeadline));
  }
  absl::StatusOr<std::vector<std::string>> LookUp(const std::string& name) {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(name, "decode.ns");
    ++num_begun_;
    if (answer_.ok()) return answer_;
    // A copy would share its text, which Debian's Abseil counts out of TSan's
    // sight.
    return absl::Status(answer_.status().code(), answer_.status().message());
  }

 private:
  absl::Mutex mutex_;
  absl::StatusOr<std::vector<std::string>> answer_ ABSL_GUARDED_BY(mutex_) =
      absl::UnavailableError("no such name");
  int num_begun_ ABSL_GUARDED_BY(mutex_) = 0;
};

class WorkerDiscoveryTest : public ::testing::Test {
 protected:
  WorkerDiscoveryTest() {
    std::string name = fs::path(::testing::TempDir()) / "discovery_XXXXXX";
    folder_ = mkdtemp(name.data());
    path_ = folder_ / "workers";
  }
  ~WorkerDiscoveryTest() override {
    discovery_.reset();
    fs::remove_all(folder_);
  }

  static void Write(const fs::path& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  absl::Status Start(WorkerDiscovery::Options options) {
    options.file_interval = absl::Milliseconds(1);
    options.dns_interval = absl::Milliseconds(1);
    options.on_change = [this](const auto& workers) { told_.Set(workers); };
    options.log = [this](const auto& line) { told_.Log(line); };
    auto discovery = WorkerDiscovery::Start(std::move(options));
    if (!discovery.ok()) return discovery.status();
    discovery_ = *std::move(discovery);
    return absl::OkStatus();
  }
  void StartWithFile() {
    const absl::Status status = Start({.workers_file = path_});
    ASSERT_TRUE(status.ok()) << status;
  }
  // The look-up's thread may outlive the test.
  void StartWithDns(std::shared_ptr<FakeDns> dns) {
    const auto entry =
        ParseWorkerEntry(v1::WORKER_ROLE_DECODE, "dns:decode.ns:7");
    ASSERT_TRUE(Start({.entries = {*entry},
                       .look_up =
                           [dns = std::move(dns)](const std::string& name) {
                             return dns->LookUp(name);
                           }})
                    .ok());
  }

  fs::path folder_;
  fs::path path_;
  Told told_;
  std::unique_ptr<WorkerDiscovery> discovery_;
};

TEST_F(WorkerDiscoveryTest, TellsTheFirstListBeforeItReturns) {
  Write(path_, "decode a:1\n");
  StartWithFile();
  EXPECT_EQ(told_.text(), "a:1 ");
}

TEST_F(WorkerDiscoveryTest, TellsAnEmptyListToo) {
  Write(path_, "# nobody yet\n");
  StartWithFile();
  EXPECT_EQ(told_.times(), 1);
  EXPECT_EQ(told_.text(), "");
}

TEST_F(WorkerDiscoveryTest, DoesNotStartWithoutItsFileOrWithAWrongOne) {
  absl::Status status = Start({.workers_file = path_});
  EXPECT_EQ(status.message(), path_.string() + ": cannot be read");
  status = Start({.workers_file = folder_});
  EXPECT_EQ(status.message(), folder_.string() + ": cannot be read");
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  status = Start({.workers_file = pipe});
  EXPECT_EQ(status.message(), pipe.string() + ": cannot be read");
  Write(path_, "decode a:1\ndecode a\n");
  status = Start({.workers_file = path_});
  EXPECT_EQ(status.message(), path_.string() + ":2: 'a' is not host:port");
  Write(path_, std::string(kMaxWorkersFileBytes + 1, '#'));
  status = Start({.workers_file = path_});
  EXPECT_EQ(status.message(), path_.string() + ": has more than 262144 bytes");
  Write(path_, std::string(kMaxWorkersFileBytes, '#'));
  EXPECT_TRUE(Start({.workers_file = path_}).ok());
}

TEST_F(WorkerDiscoveryTest, FollowsAFileThatIsWrittenAnew) {
  Write(path_, "decode a:1\n");
  StartWithFile();
  Write(path_, "decode b:1\n");  // The same size.
  EXPECT_TRUE(told_.Becomes("b:1 "));
  Write(path_, "decode b:1\nprefill c:1\n");
  EXPECT_TRUE(told_.Becomes("b:1 c:1 "));
}

TEST_F(WorkerDiscoveryTest, FollowsAFileThatIsReplaced) {
  Write(path_, "decode a:1\n");
  StartWithFile();
  Write(folder_ / "next", "decode b:1\n");
  fs::rename(folder_ / "next", path_);
  EXPECT_TRUE(told_.Becomes("b:1 "));
}

// workers -> ..data/workers, ..data -> ..1 and then ..2.
TEST_F(WorkerDiscoveryTest, FollowsTheLinkOfAConfigMap) {
  for (const char* version : {"..1", "..2"}) {
    fs::create_directory(folder_ / version);
  }
  Write(folder_ / "..1" / "workers", "decode a:1\n");
  Write(folder_ / "..2" / "workers", "decode b:1\n");
  fs::create_symlink("..1", folder_ / "..data");
  fs::create_symlink("..data/workers", path_);
  StartWithFile();
  EXPECT_EQ(told_.text(), "a:1 ");
  fs::create_symlink("..2", folder_ / "..data_tmp");
  fs::rename(folder_ / "..data_tmp", folder_ / "..data");
  EXPECT_TRUE(told_.Becomes("b:1 "));
}

TEST_F(WorkerDiscoveryTest, AFileThatIsGoneOrWrongLeavesTheListAndIsToldOnce) {
  Write(path_, "decode a:1\n");
  StartWithFile();
  const std::string kept = "; the workers listed before are kept";
  fs::remove(path_);
  EXPECT_EQ(told_.AwaitLine(), path_.string() + ": cannot be read" + kept);
  Write(folder_ / "next", "decode a:1\ndecode b\n");
  fs::rename(folder_ / "next", path_);
  EXPECT_EQ(told_.AwaitLine(),
            path_.string() + ":2: 'b' is not host:port" + kept);
  Write(folder_ / "next", "\ndecoder b:1\n");
  fs::rename(folder_ / "next", path_);
  EXPECT_EQ(told_.AwaitLine(),
            path_.string() + ":2: 'decoder' is not prefill, decode or unified" +
                kept);
  EXPECT_EQ(told_.times(), 1) << "the list is as it was";
  Write(folder_ / "next", "decode b:1\n");
  fs::rename(folder_ / "next", path_);
  EXPECT_EQ(told_.AwaitLine(), path_.string() + ": is right again");
  EXPECT_TRUE(told_.Becomes("b:1 "));
}

TEST_F(WorkerDiscoveryTest, AnEmptyFileLeavesTheListAndACommentAloneEndsIt) {
  Write(path_, "decode a:1\n");
  StartWithFile();
  Write(path_, "");
  EXPECT_EQ(told_.AwaitLine(),
            path_.string() + ": is empty; the workers listed before are kept");
  EXPECT_EQ(told_.text(), "a:1 ");
  EXPECT_EQ(told_.times(), 1);
  Write(path_, "# nobody\n");
  EXPECT_EQ(told_.AwaitLine(), path_.string() + ": is right again");
  EXPECT_TRUE(told_.Becomes(""));
}

TEST_F(WorkerDiscoveryTest, AllAddressesOfANameAreWorkers) {
  const auto dns = std::make_shared<FakeDns>();  // Outlives the test's thread.
  dns->Set(std::vector<std::string>{"10.0.0.1", "10.0.0.2"});
  StartWithDns(dns);
  EXPECT_TRUE(told_.Becomes("10.0.0.1:7 10.0.0.2:7 "));
  dns->Set(std::vector<std::string>{"10.0.0.2", "10.0.0.3"});
  EXPECT_TRUE(told_.Becomes("10.0.0.2:7 10.0.0.3:7 "));
}

TEST_F(WorkerDiscoveryTest, AFailedLookUpKeepsWhatWasKnownAndIsToldOnce) {
  const auto dns = std::make_shared<FakeDns>();  // As above.
  StartWithDns(dns);
  EXPECT_EQ(told_.AwaitLine(),
            "dns decode.ns: no such name; 0 addresses are kept");
  EXPECT_EQ(told_.text(), "");
  dns->Set(std::vector<std::string>{"10.0.0.1"});
  EXPECT_EQ(told_.AwaitLine(), "dns decode.ns: is found again");
  EXPECT_TRUE(told_.Becomes("10.0.0.1:7 "));
  dns->Set(absl::UnavailableError("servers failed"));
  EXPECT_EQ(told_.AwaitLine(),
            "dns decode.ns: servers failed; 1 addresses are kept");
  dns->AwaitLookUps(3);
  EXPECT_EQ(told_.text(), "10.0.0.1:7 ");
  dns->Set(std::vector<std::string>{"10.0.0.1"});
  EXPECT_EQ(told_.AwaitLine(), "dns decode.ns: is found again");
  EXPECT_EQ(told_.times(), 2);
}

TEST_F(WorkerDiscoveryTest, ANameThatTheFileGainsIsLookedUpAtOnce) {
  Write(path_, "unified a:1\n");
  const auto dns = std::make_shared<FakeDns>();  // As above.
  dns->Set(std::vector<std::string>{"10.0.0.1"});
  ASSERT_TRUE(
      Start({.workers_file = path_,
             .look_up =
                 [dns](const std::string& name) { return dns->LookUp(name); }})
          .ok());
  Write(path_, "unified a:1\ndecode dns:decode.ns:9\n");
  EXPECT_TRUE(told_.Becomes("a:1 10.0.0.1:9 "));
}

TEST_F(WorkerDiscoveryTest, EndsWhileALookUpHangs) {
  struct Hanging {
    absl::Notification begun;
    absl::Notification go_on;
    absl::Notification ended;
  };
  const auto hanging = std::make_shared<Hanging>();  // Its thread's, too.
  const auto entry =
      ParseWorkerEntry(v1::WORKER_ROLE_DECODE, "dns:decode.ns:7");
  ASSERT_TRUE(Start({.entries = {*entry},
                     .look_up =
                         [hanging](const std::string&) {
                           hanging->begun.Notify();
                           hanging->go_on.WaitForNotification();
                           hanging->ended.Notify();
                           return std::vector<std::string>{"10.0.0.1"};
                         }})
                  .ok());
  hanging->begun.WaitForNotification();
  discovery_.reset();
  hanging->go_on.Notify();
  hanging->ended.WaitForNotification();
  EXPECT_EQ(told_.text(), "") << "nothing is told after the end";
}

TEST(LookUpHostsTest, FindsLoopbackAndSaysWhatItDoesNotFind) {
  const auto local = LookUpHosts("127.0.0.1");
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(*local, std::vector<std::string>{"127.0.0.1"});
  EXPECT_EQ(*LookUpHosts("::1"), std::vector<std::string>{"[::1]"});
  EXPECT_TRUE(absl::IsUnavailable(LookUpHosts("no host").status()));
}

}  // namespace
}  // namespace baton
