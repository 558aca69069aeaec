#include "server/cli/rpc_error.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/baton/v1/error_details.pb.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

grpc::Status WithDetails(grpc::StatusCode code, const std::string& message,
                         const std::string& type, const std::string& value) {
  v1::RpcStatus details;
  google::protobuf::Any* any = details.add_details();
  any->set_type_url("type.googleapis.com/google.rpc." + type);
  any->set_value(value);
  return grpc::Status(code, message, details.SerializeAsString());
}

TEST(RpcErrorTest, NamesTheFieldAndTheReasonOfABadRequest) {
  v1::ErrorInfo info;
  info.set_reason("FIELD_OUT_OF_RANGE");
  (*info.mutable_metadata())["field"] = "sampling.top_p";
  const std::string text =
      ExplainRpcError(WithDetails(grpc::StatusCode::INVALID_ARGUMENT,
                                  "sampling.top_p: must be in (0, 1]",
                                  "ErrorInfo", info.SerializeAsString()),
                      "host:1");
  EXPECT_THAT(text,
              HasSubstr("INVALID_ARGUMENT: sampling.top_p: must be in (0, 1] "
                        "(FIELD_OUT_OF_RANGE); correct --top_p and try again"));
}

TEST(RpcErrorTest, SaysWhenToComeBack) {
  v1::RetryInfo info;
  info.mutable_retry_delay()->set_nanos(500'000'000);
  EXPECT_THAT(ExplainRpcError(WithDetails(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                          "queue full", "RetryInfo",
                                          info.SerializeAsString()),
                              "host:1"),
              HasSubstr("(retry after 500ms); try again later"));
}

TEST(RpcErrorTest, ARouterThatAnswersIsListening) {
  const auto explain = [](const std::string& reason) {
    v1::ErrorInfo info;
    info.set_reason(reason);
    return ExplainRpcError(WithDetails(grpc::StatusCode::UNAVAILABLE, "no",
                                       "ErrorInfo", info.SerializeAsString()),
                           "host:1");
  };
  EXPECT_THAT(ExplainRpcError({grpc::StatusCode::UNAVAILABLE, "no"}, "host:1"),
              HasSubstr("is a server listening at host:1"));
  EXPECT_THAT(explain("NO_WORKER"), HasSubstr("none of its workers can serve"));
  EXPECT_THAT(explain("DRAINING"), HasSubstr("is going down"));
  EXPECT_THAT(explain("WORKER_LOST"), HasSubstr("try again later"));
  for (const char* reason : {"NO_WORKER", "DRAINING", "WORKER_LOST"}) {
    EXPECT_THAT(explain(reason), Not(HasSubstr("is a server listening")));
  }
}

TEST(RpcErrorTest, EveryCodeSaysWhatToDo) {
  for (int code = 1; code <= 16; ++code) {
    const std::string text = ExplainRpcError(
        grpc::Status(static_cast<grpc::StatusCode>(code), "why"), "host:1");
    EXPECT_THAT(text, HasSubstr(": why; ")) << code;
    EXPECT_THAT(text, Not(HasSubstr("; \n"))) << code;
    EXPECT_GT(text.size(), text.find("; ") + 10) << code;
  }
}

TEST(RpcErrorTest, IgnoresDetailsThatAreNoStatus) {
  const grpc::Status status(grpc::StatusCode::INTERNAL, "why", "\xff\xff");
  EXPECT_THAT(ExplainRpcError(status, "host:1"), HasSubstr("INTERNAL: why; "));
}

}  // namespace
}  // namespace baton
