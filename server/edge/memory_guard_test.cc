#include "server/edge/memory_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <string>

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

class MemoryGuardTest : public ::testing::Test {
 protected:
  std::string Metrics() {
    return prometheus::TextSerializer().Serialize(registry_.Collect());
  }

  std::optional<MemoryUse> use_;
  int num_trims_ = 0;
  prometheus::Registry registry_;
  RequestGate gate_;
  MemoryGuard guard_{
      {.read = [this] { return use_; }, .trim = [this] { ++num_trims_; }},
      &gate_,
      &registry_,
      "test"};
};

TEST_F(MemoryGuardTest, RefusesNewRequestsWhileMemoryIsShort) {
  guard_.Check();
  EXPECT_TRUE(gate_.Enter().ok());
  use_ = {.used_bytes = 960, .limit_bytes = 1000};
  guard_.Check();
  const absl::Status refused = gate_.Enter();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_TRUE(RetryDelay(refused).has_value());
  EXPECT_EQ(ErrorReason(refused), "OUT_OF_MEMORY");
  EXPECT_EQ(gate_.inside(), 1u);
  guard_.Check();
  EXPECT_THAT(Metrics(),
              HasSubstr("baton_memory_used_bytes{role=\"test\"} 960"));
  EXPECT_THAT(Metrics(),
              HasSubstr("baton_memory_limit_bytes{role=\"test\"} 1000"));
  EXPECT_THAT(Metrics(), HasSubstr("baton_shed_requests_total{role=\"test\","
                                   "requests=\"new\"} 1"));
  EXPECT_EQ(num_trims_, 2) << "at each look under pressure";
  use_->used_bytes = 900;
  guard_.Check();
  EXPECT_EQ(num_trims_, 2);
  EXPECT_TRUE(gate_.Enter().ok());
  gate_.Close();
  use_->used_bytes = 990;
  guard_.Check();
  EXPECT_EQ(ErrorReason(gate_.Enter()), "DRAINING");
}

TEST_F(MemoryGuardTest, GivesBackMemoryOnceBehindTheLastRequest) {
  EXPECT_TRUE(gate_.Enter().ok());
  for (int i = 0; i < 30; ++i) guard_.Check();
  EXPECT_EQ(num_trims_, 0);
  gate_.Leave();
  for (int i = 0; i < 9; ++i) guard_.Check();
  EXPECT_EQ(num_trims_, 0);
  for (int i = 0; i < 30; ++i) guard_.Check();
  EXPECT_EQ(num_trims_, 1);
}

TEST_F(MemoryGuardTest, ShedsAtEachLookAboveTheSecondBoundAlone) {
  uint64_t waiting = 8;
  guard_.OnShed([&] {
    const uint64_t half = (waiting + 1) / 2;
    waiting -= half;
    return half;
  });
  use_ = {.used_bytes = 970, .limit_bytes = 1000};
  guard_.Check();
  EXPECT_EQ(waiting, 8u);
  use_->used_bytes = 990;
  guard_.Check();
  EXPECT_EQ(waiting, 4u);
  guard_.Check();
  EXPECT_EQ(waiting, 2u);
  use_->used_bytes = 970;
  guard_.Check();
  EXPECT_EQ(waiting, 2u);
  EXPECT_THAT(Metrics(), HasSubstr("baton_shed_requests_total{role=\"test\","
                                   "requests=\"waiting\"} 6"));
}

}  // namespace
}  // namespace baton
