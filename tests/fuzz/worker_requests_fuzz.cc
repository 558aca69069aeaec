// What reaches a worker's port: requests of a router, handles of a peer.
#include <string>
#include <string_view>
#include <vector>

#include "base/logging.h"
#include "engine/generation_request.h"
#include "proto/baton/v1/worker.pb.h"
#include "server/convert.h"
#include "server/convert_for_test.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton {
namespace {

// The first byte of an input.
constexpr char kPrefill = 'p';
constexpr char kDecode = 'd';
constexpr char kHandle = 'h';
constexpr char kAbort = 'a';

// What is let through can be served; what is not is the caller's fault.
template <typename Request>
void Check(const std::string& bytes) {
  Request request;
  if (!request.ParseFromString(bytes)) return;
  const auto converted = ToGenerationRequest(request, Limits());
  if (converted.ok()) {
    CHECK_OK(ValidateRequest(*converted, Limits()));
    return;
  }
  CHECK(absl::IsInvalidArgument(converted.status()) ||
        absl::IsFailedPrecondition(converted.status()))
      << converted.status();
}

void CheckHandle(const std::string& bytes) {
  const auto handle = ParseKvHandle(bytes);
  if (!handle.ok()) return;
  const auto again = ParseKvHandle(SerializeKvHandle(*handle));
  CHECK_OK(again.status());
  CHECK(again->blocks.size() == handle->blocks.size());
  CHECK_EQ(again->export_id, handle->export_id);
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  v1::PrefillRequest prefill;
  *prefill.mutable_request() = GoodRequest().request();
  prefill.mutable_request()->clear_num_samples();
  v1::AbortRequest abort;
  *abort.mutable_id() = GoodRequest().request().id();
  return {kPrefill + prefill.SerializeAsString(),
          kDecode + GoodRequest().SerializeAsString(),
          kHandle + GoodHandle().SerializeAsString(),
          kAbort + abort.SerializeAsString()};
}

void FuzzOne(std::string_view bytes) {
  if (bytes.empty()) return;
  const std::string message(bytes.substr(1));
  switch (bytes.front()) {
    case kPrefill:
      return Check<v1::PrefillRequest>(message);
    case kDecode:
      return Check<v1::DecodeRequest>(message);
    case kHandle:
      return CheckHandle(message);
    case kAbort: {
      v1::AbortRequest request;
      if (request.ParseFromString(message)) ToRequestId(request).IgnoreError();
      return;
    }
    default:
      return;
  }
}

}  // namespace baton
