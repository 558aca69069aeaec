#include "base/status_macros.h"

#include <memory>

#include "gtest/gtest.h"

namespace baton {
namespace {

absl::Status Propagate(const absl::Status& status, bool* reached) {
  RETURN_IF_ERROR(status);
  *reached = true;
  return absl::OkStatus();
}

absl::StatusOr<int> Dereference(absl::StatusOr<std::unique_ptr<int>> pointer) {
  ASSIGN_OR_RETURN(std::unique_ptr<int> p, std::move(pointer));
  return *p;
}

TEST(StatusMacrosTest, ReturnIfErrorStopsAtAnErrorOnly) {
  bool reached = false;
  EXPECT_EQ(Propagate(absl::DataLossError("x"), &reached).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_FALSE(reached);
  EXPECT_TRUE(Propagate(absl::OkStatus(), &reached).ok());
  EXPECT_TRUE(reached);
}

TEST(StatusMacrosTest, AssignOrReturnMovesTheValueOrReturnsTheError) {
  EXPECT_EQ(*Dereference(std::make_unique<int>(7)), 7);
  EXPECT_EQ(Dereference(absl::NotFoundError("y")).status().message(), "y");
}

}  // namespace
}  // namespace baton
