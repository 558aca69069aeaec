#include "server/edge/memory_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(PressureOfTest, IsDecidedByTheBoundsAndNoneWithoutALimit) {
  using enum MemoryPressure;
  const MemoryGuardOptions defaults;
  const auto at = [&](uint64_t used, const MemoryGuardOptions& options) {
    return PressureOf(MemoryUse{.used_bytes = used, .limit_bytes = 100},
                      options);
  };
  EXPECT_EQ(PressureOf(std::nullopt, defaults), kNone);
  EXPECT_EQ(at(95, defaults), kNone);
  EXPECT_EQ(at(96, defaults), kRefuse);
  EXPECT_EQ(at(98, defaults), kRefuse);
  EXPECT_EQ(at(99, defaults), kShed);
  EXPECT_EQ(at(200, defaults), kShed);
  EXPECT_EQ(at(200, {.shed_ratio = 0}), kRefuse);
  EXPECT_EQ(at(200, {.refuse_ratio = 0, .shed_ratio = 0}), kNone);
}

constexpr uint64_t kMiB = 1 << 20;

class MemoryGuardTest : public ::testing::Test {
 protected:
  void Use(uint64_t mebibytes) {
    use_ = {.used_bytes = mebibytes * kMiB, .limit_bytes = 1000 * kMiB};
  }
  // As time passes, so that the next request causes a look.
  void UseAndWait(uint64_t mebibytes) {
    Use(mebibytes);
    now_ += absl::Milliseconds(50);
  }
  std::string Metrics() {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

  std::optional<MemoryUse> use_;
  absl::Time now_ = absl::UnixEpoch();
  int num_trims_ = 0;
  std::function<void()> on_trim_;
  prometheus::Registry registry_;
  RequestGate gate_;
  MemoryGuard guard_{{.read = [this] { return use_; },
                      .trim =
                          [this] {
                            ++num_trims_;
                            if (on_trim_) on_trim_();
                          },
                      .now = [this] { return now_; }},
                     &gate_,
                     &registry_,
                     "test"};
};

TEST(RequestFootprintTest, GrowsWithBytesAndSamplesWithinBounds) {
  EXPECT_EQ(RequestFootprint({}), 32u * 1024);
  EXPECT_EQ(RequestFootprint({.message_bytes = 1000}), 32u * 1024 + 16000);
  EXPECT_EQ(RequestFootprint({.message_bytes = 1000, .num_samples = 3}),
            48u * 1024 + 24000);
  EXPECT_EQ(RequestFootprint({.num_samples = 0}), RequestFootprint({}));
  EXPECT_EQ(RequestFootprint({.num_samples = 0xffffffff}),
            RequestFootprint({.num_samples = 128}));
}

TEST_F(MemoryGuardTest, RefusesNewRequestsWhileMemoryIsShort) {
  guard_.Check();
  EXPECT_TRUE(gate_.EnterWith({}).ok()) << "no limit is known";
  Use(960);
  guard_.Check();
  const absl::Status refused = gate_.EnterWith({});
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_TRUE(RetryDelay(refused).has_value());
  EXPECT_EQ(ErrorReason(refused), "OUT_OF_MEMORY");
  EXPECT_EQ(gate_.inside(), 1u);
  EXPECT_THAT(Metrics(), HasSubstr("baton_memory_used_bytes{role=\"test\"} "
                                   "1006632960"));
  EXPECT_THAT(Metrics(), HasSubstr("baton_memory_limit_bytes{role=\"test\"} "
                                   "1048576000"));
  EXPECT_THAT(Metrics(), HasSubstr("baton_shed_requests_total{role=\"test\","
                                   "requests=\"new\"} 1"));
  UseAndWait(900);
  EXPECT_TRUE(gate_.EnterWith({}).ok());
  gate_.Close();
  UseAndWait(990);
  EXPECT_EQ(ErrorReason(gate_.EnterWith({})), "DRAINING");
}

TEST_F(MemoryGuardTest, LetsInABurstAsFarAsThereIsRoom) {
  constexpr RequestSize kMessage = {.message_bytes = kMiB / 2};
  Use(900);
  guard_.Check();
  const uint64_t room = 50 * kMiB / RequestFootprint(kMessage);
  const auto enter_all = [&] {
    uint64_t num_entered = 0;
    while (gate_.EnterWith(kMessage).ok()) ++num_entered;
    return num_entered;
  };
  EXPECT_EQ(enter_all(), room);
  guard_.Check();
  EXPECT_EQ(enter_all(), 0u) << "what they take need not show yet";
  UseAndWait(900);
  EXPECT_EQ(enter_all(), 0u) << "nor so soon";
  guard_.Check();
  EXPECT_EQ(enter_all(), 0u) << "however often it looks";
  UseAndWait(900);
  EXPECT_EQ(enter_all(), room) << "they took nothing, or have left";
  UseAndWait(949);
  guard_.Check();
  UseAndWait(949);
  EXPECT_EQ(enter_all(), 0u);
  EXPECT_TRUE(gate_.EnterWith({}).ok()) << "there is room for little ones";
}

TEST_F(MemoryGuardTest, AsksOnceForACheckWhenItRefusesAndTrimsBeforeItLooks) {
  int num_hastes = 0;
  guard_.OnHaste([&] { ++num_hastes; });
  Use(900);
  guard_.Check();
  UseAndWait(960);
  EXPECT_FALSE(gate_.EnterWith({}).ok());
  EXPECT_FALSE(gate_.EnterWith({}).ok());
  EXPECT_EQ(num_hastes, 1);
  EXPECT_EQ(num_trims_, 0);
  on_trim_ = [this] { Use(900); };
  EXPECT_EQ(guard_.Check(), MemoryPressure::kNone);
  EXPECT_EQ(num_trims_, 1);
  EXPECT_TRUE(gate_.EnterWith({}).ok());
  EXPECT_FALSE(gate_.EnterWith({.message_bytes = 100 * kMiB}).ok());
  EXPECT_EQ(num_hastes, 2) << "for one that is too large, too";
}

TEST_F(MemoryGuardTest, GivesBackMemoryOnceBehindTheLastRequest) {
  const auto check_for = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      now_ += absl::Seconds(1);
      guard_.Check();
    }
  };
  check_for(30);
  EXPECT_EQ(num_trims_, 0) << "nobody has come";
  EXPECT_TRUE(gate_.EnterWith({}).ok());
  check_for(30);
  EXPECT_EQ(num_trims_, 0);
  gate_.Leave();
  check_for(9);
  EXPECT_EQ(num_trims_, 0);
  check_for(30);
  EXPECT_EQ(num_trims_, 1);
  EXPECT_THAT(Metrics(),
              HasSubstr("baton_memory_trims_total{role=\"test\"} 1"));
  EXPECT_TRUE(gate_.EnterWith({}).ok());
  gate_.Leave();
  check_for(30);
  EXPECT_EQ(num_trims_, 2) << "one that no check saw inside";
}

TEST_F(MemoryGuardTest, ShedsEachSecondAboveTheSecondBoundAlone) {
  uint64_t waiting = 8;
  guard_.OnShed([&] {
    const uint64_t half = (waiting + 1) / 2;
    waiting -= half;
    return half;
  });
  Use(970);
  guard_.Check();
  EXPECT_EQ(waiting, 8u);
  Use(990);
  guard_.Check();
  EXPECT_EQ(waiting, 4u);
  now_ += absl::Milliseconds(999);
  guard_.Check();
  EXPECT_EQ(waiting, 4u) << "those are on their way out";
  now_ += absl::Milliseconds(1);
  guard_.Check();
  EXPECT_EQ(waiting, 2u);
  Use(970);
  now_ += absl::Seconds(1);
  guard_.Check();
  EXPECT_EQ(waiting, 2u);
  EXPECT_EQ(num_trims_, 5) << "at each check while memory is short";
  EXPECT_THAT(Metrics(), HasSubstr("baton_shed_requests_total{role=\"test\","
                                   "requests=\"waiting\"} 6"));
}

}  // namespace
}  // namespace baton
