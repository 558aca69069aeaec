#include "server/edge/memory_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

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
  prometheus::Registry registry_;
  RequestGate gate_;
  MemoryGuard guard_{{.read = [this] { return use_; },
                      .trim = [this] { ++num_trims_; },
                      .now = [this] { return now_; }},
                     &gate_,
                     &registry_,
                     "test"};
};

TEST_F(MemoryGuardTest, RefusesNewRequestsWhileMemoryIsShort) {
  guard_.Check();
  EXPECT_TRUE(gate_.EnterWith(0).ok()) << "no limit is known";
  Use(960);
  guard_.Check();
  const absl::Status refused = gate_.EnterWith(0);
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
  guard_.Check();
  EXPECT_EQ(num_trims_, 2) << "at each check under pressure";
  Use(900);
  guard_.Check();
  EXPECT_EQ(num_trims_, 2);
  EXPECT_TRUE(gate_.EnterWith(0).ok());
  gate_.Close();
  UseAndWait(990);
  EXPECT_EQ(ErrorReason(gate_.EnterWith(0)), "DRAINING");
}

TEST_F(MemoryGuardTest, LetsInABurstAsFarAsThereIsRoom) {
  Use(900);
  guard_.Check();
  const uint64_t message = kMiB / 2;
  const uint64_t room = 50 * kMiB / RequestFootprint(message);
  const auto enter_all = [&] {
    uint64_t num_entered = 0;
    while (gate_.EnterWith(message).ok()) ++num_entered;
    return num_entered;
  };
  EXPECT_EQ(enter_all(), room);
  // What they take may not show yet, or does.
  now_ += absl::Milliseconds(50);
  EXPECT_EQ(enter_all(), 0u);
  now_ += absl::Milliseconds(50);
  EXPECT_EQ(enter_all(), room);
  now_ += absl::Milliseconds(50);
  EXPECT_EQ(enter_all(), 0u);
  UseAndWait(949);
  EXPECT_EQ(enter_all(), 0u);
  EXPECT_TRUE(gate_.EnterWith(0).ok()) << "there is room for little ones";
}

TEST_F(MemoryGuardTest, LooksAsRequestsComeAndAsksForACheckWhenMemoryIsShort) {
  int num_rises = 0;
  guard_.OnRise([&] { ++num_rises; });
  Use(900);
  guard_.Check();
  Use(960);
  EXPECT_TRUE(gate_.EnterWith(0).ok()) << "it looked just now";
  UseAndWait(960);
  EXPECT_FALSE(gate_.EnterWith(0).ok());
  EXPECT_EQ(num_rises, 1);
  UseAndWait(960);
  EXPECT_FALSE(gate_.EnterWith(0).ok());
  EXPECT_EQ(num_rises, 1) << "it is known";
  UseAndWait(990);
  EXPECT_FALSE(gate_.EnterWith(0).ok());
  EXPECT_EQ(num_rises, 2);
  UseAndWait(900);
  EXPECT_TRUE(gate_.EnterWith(0).ok());
  EXPECT_EQ(num_rises, 2);
}

TEST_F(MemoryGuardTest, GivesBackMemoryOnceBehindTheLastRequest) {
  EXPECT_TRUE(gate_.EnterWith(0).ok());
  for (int i = 0; i < 30; ++i) guard_.Check();
  EXPECT_EQ(num_trims_, 0);
  gate_.Leave();
  for (int i = 0; i < 9; ++i) guard_.Check();
  EXPECT_EQ(num_trims_, 0);
  for (int i = 0; i < 30; ++i) guard_.Check();
  EXPECT_EQ(num_trims_, 1);
  EXPECT_THAT(Metrics(),
              HasSubstr("baton_memory_trims_total{role=\"test\"} 1"));
}

TEST_F(MemoryGuardTest, ShedsAtEachLookAboveTheSecondBoundAlone) {
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
  guard_.Check();
  EXPECT_EQ(waiting, 2u);
  Use(970);
  guard_.Check();
  EXPECT_EQ(waiting, 2u);
  EXPECT_THAT(Metrics(), HasSubstr("baton_shed_requests_total{role=\"test\","
                                   "requests=\"waiting\"} 6"));
}

}  // namespace
}  // namespace baton
