#include "base/field_error.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(FieldErrorTest, CarriesTheFieldInTextAndPayload) {
  const absl::Status status =
      FieldError("sampling.top_p", "must be in (0, 1], is 2");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "sampling.top_p: must be in (0, 1], is 2");
  EXPECT_EQ(ErrorField(status), "sampling.top_p");
}

TEST(FieldErrorTest, OtherStatusesHaveNoField) {
  EXPECT_EQ(ErrorField(absl::OkStatus()), std::nullopt);
  EXPECT_EQ(ErrorField(absl::InvalidArgumentError("a: b")), std::nullopt);
}

}  // namespace
}  // namespace baton
