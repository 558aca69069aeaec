#include "server/edge/grpc_status.h"

#include <gtest/gtest.h>

#include "base/field_error.h"
#include "proto/baton/v1/error_details.pb.h"

namespace baton {
namespace {

TEST(GrpcStatusTest, OkIsOk) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(GrpcStatusTest, EveryCodeKeepsItsNumber) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(wire.error_code()), code);
    EXPECT_EQ(FromGrpcStatus(wire).code(), status.code());
  }
}

TEST(GrpcStatusTest, AFieldErrorIsReadableByStockClients) {
  const grpc::Status wire =
      ToGrpcStatus(FieldError("sampling.top_p", "must be in (0, 1]"));
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(wire.error_message(), "sampling.top_p: must be in (0, 1]");
  v1::RpcStatus rpc;
  ASSERT_TRUE(rpc.ParseFromString(wire.error_details()));
  EXPECT_EQ(rpc.code(), 3);
  EXPECT_EQ(rpc.message(), wire.error_message());
  ASSERT_EQ(rpc.details_size(), 1);
  EXPECT_EQ(rpc.details(0).type_url(),
            "type.googleapis.com/google.rpc.ErrorInfo");
  v1::ErrorInfo info;
  ASSERT_TRUE(info.ParseFromString(rpc.details(0).value()));
  EXPECT_EQ(info.reason(), "INVALID_FIELD");
  EXPECT_EQ(info.domain(), "baton");
  EXPECT_EQ(info.metadata().at("field"), "sampling.top_p");
}

TEST(GrpcStatusTest, FieldReasonAndDelaySurviveTheWire) {
  absl::Status status = WithRetryDelay(
      WithReason(FieldError("a.b", "too large: 5: 6"), "TOO_LARGE"),
      absl::Milliseconds(1500));
  const absl::Status back = FromGrpcStatus(ToGrpcStatus(status));
  EXPECT_EQ(back, status);
  EXPECT_EQ(ErrorField(back), "a.b");
  EXPECT_EQ(ErrorReason(back), "TOO_LARGE");
  EXPECT_EQ(RetryDelay(back), absl::Milliseconds(1500));
}

TEST(GrpcStatusTest, ARetryDelayAloneTravelsToo) {
  const absl::Status back = FromGrpcStatus(ToGrpcStatus(WithRetryDelay(
      absl::ResourceExhaustedError("queue is full"), absl::Seconds(2))));
  EXPECT_EQ(back.message(), "queue is full");
  EXPECT_EQ(RetryDelay(back), absl::Seconds(2));
  EXPECT_FALSE(ErrorField(back).has_value());
  EXPECT_FALSE(ErrorReason(back).has_value());
}

TEST(GrpcStatusTest, InternalTextDoesNotLeave) {
  for (const absl::Status& status :
       {absl::InternalError("open /models/secret"),
        absl::UnknownError("10.0.0.7:999"), absl::DataLossError("/dev/shm/x"),
        absl::UnavailableError("connect to ipv4:10.0.0.7:999 failed")}) {
    const grpc::Status wire = ToGrpcStatus(status);
    EXPECT_EQ(wire.error_message().find("10.0"), std::string::npos);
    EXPECT_EQ(wire.error_message().find('/'), std::string::npos);
  }
}

TEST(GrpcStatusTest, UnavailableWithDetailsIsOursAndKeepsItsText) {
  const grpc::Status wire = ToGrpcStatus(
      WithRetryDelay(absl::UnavailableError("draining"), absl::Seconds(1)));
  EXPECT_EQ(wire.error_message(), "draining");
}

TEST(GrpcStatusTest, DetailsThatAreNoDetailsAreIgnored) {
  const absl::Status status = FromGrpcStatus(
      grpc::Status(grpc::StatusCode::ABORTED, "lost", "\xff\xff garbage"));
  EXPECT_EQ(status, absl::AbortedError("lost"));
}

TEST(GrpcStatusTest, AForeignFieldThatIsNotInTheTextIsIgnored) {
  v1::ErrorInfo info;
  info.set_reason("R");
  (*info.mutable_metadata())["field"] = "x";
  v1::RpcStatus rpc;
  rpc.add_details()->set_type_url("type.googleapis.com/google.rpc.ErrorInfo");
  rpc.mutable_details(0)->set_value(info.SerializeAsString());
  const absl::Status status = FromGrpcStatus(grpc::Status(
      grpc::StatusCode::NOT_FOUND, "gone", rpc.SerializeAsString()));
  EXPECT_FALSE(ErrorField(status).has_value());
  EXPECT_EQ(ErrorReason(status), "R");
}

}  // namespace
}  // namespace baton
