// The router as its clients and workers see it: real gRPC, scripted workers.
#include "server/router/router.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/router/router_for_test.h"

namespace baton {
namespace {

// One prefill and one decode worker that do as they should.
class RouterPairTest : public ::testing::Test {
 protected:
  RouterPairTest() {
    prefill_.SetPrefill(GoodPrefill());
    decode_.SetDecode(GoodDecode());
  }
  void StartRouter() {
    StartRouter(RouterForTest::Options({&prefill_, &decode_}));
  }
  void StartRouter(Router::Options options) {
    router_ = std::make_unique<RouterForTest>(std::move(options));
    router_->router().pool().WaitUntilReady();
  }

  FakeWorker prefill_{DemoInfo(v1::WORKER_ROLE_PREFILL)};
  FakeWorker decode_{DemoInfo(v1::WORKER_ROLE_DECODE)};
  std::unique_ptr<RouterForTest> router_;
};

TEST_F(RouterPairTest, StreamsTextThroughPrefillAndDecode) {
  StartRouter();
  const GenerateOutcome outcome = router_->Generate(IdsRequest(5));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.token_ids, LetterTokens(0, 5));
  EXPECT_EQ(outcome.logprobs, (std::vector<float>{0, -1, -2, -3, -4}));
  EXPECT_EQ(outcome.text, "abcde");
  ASSERT_TRUE(outcome.finished.has_value());
  EXPECT_EQ(outcome.finished->finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(outcome.finished->usage().prompt_tokens(), 3u);
  EXPECT_EQ(outcome.finished->usage().completion_tokens(), 5u);
  EXPECT_EQ(outcome.finished->usage().cached_tokens(), 1u);
  EXPECT_EQ(outcome.finished->fingerprint(), "fingerprint-1");
  EXPECT_EQ(outcome.finished->timing().prefill_seconds(), 0.25);
  EXPECT_EQ(outcome.finished->timing().kv_transfer_bytes(), 4096u);
  EXPECT_GE(outcome.finished->timing().queue_seconds(), 0.625);
}

}  // namespace
}  // namespace baton
