#include "server/cli/top.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/field_error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/worker.grpc.pb.h"
#include "server/edge/health.h"
#include "server/edge/served_for_test.h"

namespace baton {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// Draws a thousand tokens between any two questions.
class FakeWorker final : public v1::WorkerService::Service {
 public:
  grpc::Status GetWorkerInfo(grpc::ServerContext*,
                             const v1::GetWorkerInfoRequest*,
                             v1::GetWorkerInfoResponse* response) override {
    response->set_role(v1::WORKER_ROLE_DECODE);
    return grpc::Status::OK;
  }
  grpc::Status GetLoad(grpc::ServerContext*, const v1::GetLoadRequest*,
                       v1::GetLoadResponse* response) override {
    response->add_ranks()->set_drawn_tokens(1000 * ++asked_);
    return grpc::Status::OK;
  }
  int asked() const { return asked_; }

 private:
  std::atomic<int> asked_{0};
};

class TopTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { EnableHealthAndReflection(); }

  TopTest() {
    options_.workers = {served_.endpoint};
    options_.interval = absl::Milliseconds(1);
    options_.timeout = absl::Seconds(60);
  }

  std::vector<std::string> Run(int exit_code = kExitOk) {
    std::istringstream in;
    std::ostringstream err;
    EXPECT_EQ(RunTop(options_, {in, out_, err}), exit_code);
    EXPECT_EQ(err.str(), "");
    return absl::StrSplit(out_.str(), '\n');
  }

  FakeWorker worker_;
  ServedForTest served_{&worker_};
  TopOptions options_;
  std::ostringstream out_;
};

TEST_F(TopTest, OnceIsOnePlainTableWithRates) {
  options_.once = true;
  options_.terminal_size = [] { return TerminalSize{.columns = 9, .rows = 2}; };
  const auto lines = Run();
  ASSERT_THAT(lines, SizeIs(4));  // The last one is empty.
  EXPECT_EQ(worker_.asked(), 2);
  EXPECT_THAT(lines[1], ContainsRegex("^" + options_.workers[0] +
                                      " +decode +serving +0"));
  EXPECT_THAT(lines[1], Not(HasSubstr(" - "))) << "every rate is known";
  EXPECT_THAT(out_.str(), Not(HasSubstr("\x1b")));
}

TEST_F(TopTest, WithoutATerminalTablesFollowEachOther) {
  options_.count = 2;
  const auto lines = Run();
  ASSERT_THAT(lines, SizeIs(8));
  EXPECT_EQ(lines[0], lines[4]);
  EXPECT_EQ(lines[3], "");
  EXPECT_THAT(lines[1], HasSubstr(" - ")) << "no rates yet";
  EXPECT_THAT(out_.str(), Not(HasSubstr("\x1b")));
}

TEST_F(TopTest, OnATerminalTheyAreDrawnOverEachOther) {
  options_.count = 2;
  options_.terminal_size = [] {
    return TerminalSize{.columns = 200, .rows = 50};
  };
  Run();
  const std::vector<std::string> frames = absl::StrSplit(out_.str(), "\x1b[H");
  ASSERT_THAT(frames, SizeIs(3));
  EXPECT_EQ(frames[0], "\x1b[2J");
  for (const std::string& frame : {frames[1], frames[2]}) {
    EXPECT_THAT(frame, HasSubstr("\x1b[K\n" + options_.workers[0]));
  }
}

TEST_F(TopTest, AWorkerThatIsGoneIsALineAndNoEnd) {
  const std::string here = options_.workers[0];
  served_.server->Shutdown();
  options_.count = 2;
  const auto lines = Run();
  ASSERT_THAT(lines, SizeIs(8));
  for (const int i : {1, 5}) {
    EXPECT_THAT(lines[i], ContainsRegex("^" + here + " +- +unreachable"));
  }
}

TEST_F(TopTest, OnceFailsWhereAWorkerDoesNotAnswer) {
  options_.once = true;
  const std::string here = options_.workers[0];
  options_.workers.push_back("127.0.0.1:1");
  const auto lines = Run(kExitFailed);
  EXPECT_THAT(lines[1], HasSubstr(here)) << "the others are shown";
  EXPECT_THAT(lines[2], HasSubstr("unreachable"));
}

TEST_F(TopTest, AServerThatIsNoWorkerIsALineThatSaysSo) {
  const ServedForTest other(nullptr);
  options_.workers.push_back(other.endpoint);
  options_.count = 1;
  const auto lines = Run();
  EXPECT_THAT(lines[1], HasSubstr("serving"));
  EXPECT_THAT(lines[2], HasSubstr("no-worker"));
}

TEST_F(TopTest, AWorkerThatDoesNotServeStillTellsItsLoad) {
  SetReadiness(served_.server.get(), false);
  options_.count = 1;
  EXPECT_THAT(Run()[1], ContainsRegex("decode +not-serving +0 "));
}

TEST(TerminalFrameTest, CutsWhatDoesNotFit) {
  EXPECT_EQ(TerminalFrame("abcd\ne\n", {.columns = 3, .rows = 3}),
            "\x1b[Habc\x1b[K\ne\x1b[K\n\x1b[J");
  EXPECT_EQ(TerminalFrame("a\nb\nc\n", {.columns = 5, .rows = 3}),
            "\x1b[Ha\x1b[K\n... t\x1b[K\n\x1b[J");
}

TEST(ValidateTopTest, NamesTheFlagThatIsWrong) {
  const auto refused = [](const TopOptions& options) {
    return ErrorField(ValidateTop(options)).value_or("-");
  };
  EXPECT_EQ(refused({}), "workers");
  EXPECT_EQ(refused({.workers = {"a:1", "b"}}), "workers");
  EXPECT_EQ(refused({.workers = {"a:1", "[::1]:2"}}), "-");
  EXPECT_EQ(refused({.workers = {"a:1"}, .once = true, .count = 2}), "once");
}

}  // namespace
}  // namespace baton
