// Processes of a group that are objects of this one: real engines, devices,
// links and votes over a model of hashes whose ranks meet in each step.
#include "server/group_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/logging.h"
#include "comm/loopback_transport.h"
#include "comm/testing/kv_transfer_side.h"
#include "server/group_membership_for_test.h"
#include "server/group_process_for_test.h"
#include "tests/fakes/fake_rank.h"

namespace baton {
namespace {

using Ranks = std::vector<uint32_t>;

// Tokens of a request that does not end by itself while a test runs.
constexpr uint32_t kEndless = 1 << 14;

// It has ended by itself, with the tokens that it must have.
bool IsExact(const AwaitedAnswer& answer) {
  const RecordingTokenSink& record = answer.record();
  return record.code() == absl::StatusCode::kOk &&
         record.tokens == ExpectedOf(kModel, answer.request()).tokens;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class GroupLoopTest : public testing::Test {
 protected:
  explicit GroupLoopTest(GroupProcessOptions options = {})
      : options_(std::move(options)) {
    options_.leader = FreeAddress();
  }

  GroupProcessOptions OptionsOf(uint32_t p) const {
    GroupProcessOptions options = options_;
    options.process = p;
    return options;
  }
  void Start(uint32_t p) { StartWith(OptionsOf(p)); }
  void StartWith(const GroupProcessOptions& options) {
    auto& process = processes_[options.process];
    process = std::make_unique<GroupProcess>(
        options, network_.CreateEndpoint(
                     "process" + std::to_string(++num_endpoints_), {}));
  }
  void StartBoth() {
    Start(0);
    Start(1);
    AwaitBoth();
  }
  void AwaitBoth() {
    for (uint32_t p = 0; p < 2; ++p) CHECK_OK(process(p).loop().AwaitEpoch());
  }
  GroupProcess& process(uint32_t p) { return *processes_[p]; }
  void Stop(uint32_t p) { processes_[p].reset(); }
  // Asks until a request is handed back for a reason with this in it.
  static std::string AwaitReason(GroupProcess* process,
                                 const std::string& part) {
    for (;;) {
      AwaitedAnswer& asked = process->Submit(0, 1);
      if (asked.AwaitEnd() == absl::StatusCode::kUnavailable &&
          Has(asked.error(), part)) {
        return asked.error();
      }
    }
  }
  // Each rank of both answers.
  void ExpectService() {
    std::vector<AwaitedAnswer*> answers;
    for (uint32_t p = 0; p < 2; ++p) {
      for (uint32_t i = 0; i < kLocalRanks; ++i) {
        answers.push_back(&process(p).Submit(i, 20));
        answers.push_back(&process(p).Submit(i, 3));
      }
    }
    for (AwaitedAnswer* answer : answers) {
      EXPECT_EQ(answer->AwaitEnd(), absl::StatusCode::kOk) << answer->error();
      EXPECT_TRUE(IsExact(*answer));
    }
  }

  GroupProcessOptions options_;
  LoopbackNetwork network_;
  int num_endpoints_ = 0;
  std::unique_ptr<GroupProcess> processes_[2];
};

TEST_F(GroupLoopTest, BeforeTheGroupHasFormedRequestsAreHandedBack) {
  Start(0);
  AwaitedAnswer& answer = process(0).Submit(1, 5);
  EXPECT_EQ(answer.AwaitEnd(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(answer.error(), "the worker's group has not formed yet");
  EXPECT_TRUE(process(0).readiness().empty());
  Start(1);
  AwaitBoth();
  ExpectService();
  EXPECT_EQ(process(0).readiness(), std::vector<bool>{true});
}

TEST_F(GroupLoopTest, AProcessWithAllRanksServes) {
  options_.num_processes = 1;
  Start(0);
  CHECK_OK(process(0).loop().AwaitEpoch());
  AwaitedAnswer& answer = process(0).Submit(1, 20);
  EXPECT_EQ(answer.AwaitEnd(), absl::StatusCode::kOk);
  EXPECT_TRUE(IsExact(answer));
  process(0).loop().LeaveGroup(absl::InfiniteFuture());
}

TEST_F(GroupLoopTest, BothServeAtOnceAndAfterPauses) {
  StartBoth();
  for (int round = 0; round < 3; ++round) ExpectService();
  EXPECT_TRUE(process(0).load().is_formed());
  EXPECT_EQ(process(0).load().decode_steps(), process(1).load().decode_steps());
}

TEST_F(GroupLoopTest, AnEpochsEndHandsRequestsBackUntilTheNext) {
  StartBoth();
  AwaitedAnswer& endless = process(0).Submit(0, kEndless);
  AwaitedAnswer& other = process(0).Submit(1, kEndless);
  endless.AwaitToken();
  Stop(1);
  EXPECT_EQ(endless.AwaitEnd(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(other.AwaitEnd(), absl::StatusCode::kUnavailable);
  AwaitReason(&process(0), "ranks 2..3: the process of ranks 2..3 leaves");
  EXPECT_EQ(process(0).readiness(), (std::vector<bool>{true, false}));
  EXPECT_FALSE(process(0).load().is_formed());
  Start(1);
  AwaitBoth();
  ExpectService();
  EXPECT_EQ(process(0).readiness(), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(process(0).load().epochs_ended(), 1u);
}

TEST_F(GroupLoopTest, ACompleteExportOutlivesItsEpoch) {
  StartBoth();
  AwaitedAnswer& prefill = process(0).Submit(1, 20, RequestMode::kPrefill);
  prefill.AwaitToken();  // It is complete.
  Stop(1);
  AwaitReason(&process(0), "leaves");
  EXPECT_EQ(process(0).engine(1).load().exporting_requests, 1u);
  const MonotonicClock clock;
  KvTransferSide reader(network_.CreateEndpoint("reader", {}), 4,
                        process(0).block_bytes(), &clock,
                        {.fingerprint = "fake"});
  reader.agent().StartImport(ImportId(1), prefill.handle(), 0, {BlockId(2)});
  while (reader.imports().empty()) {
    if (!reader.agent().Poll()) reader.agent().Wait(absl::Seconds(1));
  }
  EXPECT_TRUE(reader.imports().begin()->second.status.ok());
  // What tells the exporter goes out in its calls.
  std::atomic<bool> ended = false;
  std::thread told([&] {
    EXPECT_EQ(prefill.AwaitEnd(), absl::StatusCode::kOk);
    ended.store(true);
    reader.agent().Wake();
  });
  while (!ended.load()) {
    if (!reader.agent().Poll()) reader.agent().Wait(absl::Seconds(1));
  }
  told.join();
}

TEST_F(GroupLoopTest, WhoLeavesStepsOnForThoseWhoWork) {
  StartBoth();
  std::atomic<bool> has_left = false;
  std::thread leaver([&] {
    process(0).loop().LeaveGroup(absl::InfiniteFuture());
    has_left.store(true);
  });
  for (int i = 0; i < 3; ++i) {
    AwaitedAnswer& answer = process(1).Submit(i % kLocalRanks, 40);
    EXPECT_EQ(answer.AwaitEnd(), absl::StatusCode::kOk) << answer.error();
    EXPECT_TRUE(IsExact(answer));
  }
  EXPECT_FALSE(has_left.load());
  process(1).loop().LeaveGroup(absl::InfiniteFuture());
  leaver.join();
}

TEST_F(GroupLoopTest, WhoLeavesEndsItsOwnRequestsFirst) {
  StartBoth();
  AwaitedAnswer& answer = process(0).Submit(0, 60);
  answer.AwaitToken();
  std::thread leaver(
      [&] { process(1).loop().LeaveGroup(absl::InfiniteFuture()); });
  process(0).loop().LeaveGroup(absl::InfiniteFuture());
  leaver.join();
  EXPECT_EQ(answer.AwaitEnd(), absl::StatusCode::kOk) << answer.error();
  EXPECT_TRUE(IsExact(answer));
}

TEST_F(GroupLoopTest, WhoLeavesStopsAtTheDeadlineIfOthersWorkOn) {
  StartBoth();
  AwaitedAnswer& endless = process(1).Submit(0, kEndless);
  endless.AwaitToken();
  const MonotonicClock clock;
  process(0).loop().LeaveGroup(clock.Now() + absl::Milliseconds(50));
  EXPECT_EQ(endless.AwaitEnd(), absl::StatusCode::kUnavailable);
  AwaitReason(&process(1), "the process of ranks 0..1 leaves");
}

TEST_F(GroupLoopTest, AProcessThatIsRefusedSaysWhy) {
  StartBoth();
  Stop(1);
  GroupProcessOptions other = OptionsOf(1);
  other.option = "another";
  StartWith(other);
  const absl::Status refused = process(1).loop().AwaitEpoch();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Has(refused.ToString(), "--option is same")) << refused;
  EXPECT_EQ(process(1).loop().refusal(), refused);
  AwaitReason(&process(1), "--option is same");
  EXPECT_TRUE(process(1).was_refused());
  EXPECT_TRUE(process(1).readiness().empty());
}

TEST_F(GroupLoopTest, TheWatchdogNamesTheRanksThatDoNotVote) {
  options_.watchdog = absl::Milliseconds(100);
  Start(0);
  // Joins, and that is all.
  const auto silent = StartMembership(OptionsOf(1));
  CHECK_OK(process(0).loop().AwaitEpoch());
  AwaitedAnswer& answer = process(0).Submit(0, 5);
  EXPECT_EQ(answer.AwaitEnd(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Has(answer.error(), "the vote on step 1 waited 100ms for it"))
      << answer.error();
  std::vector<MembershipEvent> events, all;
  while (all.size() < 2) {
    silent->TakeEvents(&events);
    all.insert(all.end(), events.begin(), events.end());
    silent->Wait(absl::Seconds(1));
  }
  const GroupEpochEnd end = std::get<EpochEnded>(all[1]).end;
  EXPECT_EQ(end.ranks, (Ranks{2, 3}));
  EXPECT_EQ(end.reason, "the vote on step 1 waited 100ms for it");
  EXPECT_EQ(process(0).load().watchdog_firings(), 1u);
}

// Devices wait in shared memory or for messages.
class GroupLoopDeviceTest : public GroupLoopTest,
                            public testing::WithParamInterface<UcxMode> {
 protected:
  GroupLoopDeviceTest() : GroupLoopTest({.mode = GetParam()}) {}
};

INSTANTIATE_TEST_SUITE_P(Ways, GroupLoopDeviceTest,
                         testing::Values(UcxMode::kShm, UcxMode::kTcp));

TEST_P(GroupLoopDeviceTest, ADeviceThatIsHeldIsNamedAndTheGroupFormsAgain) {
  options_.deadline = absl::Seconds(2);
  StartBoth();
  ExpectService();
  process(1).gate(1).Set(/*open=*/false);
  AwaitedAnswer& answer = process(0).Submit(0, kEndless);
  EXPECT_EQ(answer.AwaitEnd(), absl::StatusCode::kUnavailable);
  // Who else waits for its process may name all of that.
  const std::string reason = AwaitReason(&process(0), "ended, by ranks");
  EXPECT_TRUE(Has(reason, "by ranks 2..3: ") || Has(reason, "by ranks 3: "))
      << reason;
  EXPECT_TRUE(Has(reason, "waited 2s")) << reason;
  process(1).gate(1).Set(/*open=*/true);
  AwaitBoth();
  ExpectService();
}

}  // namespace
}  // namespace baton
