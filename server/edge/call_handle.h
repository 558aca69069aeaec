// A server call that can be ended from any thread, at any time.
#ifndef BATON_SERVER_EDGE_CALL_HANDLE_H_
#define BATON_SERVER_EDGE_CALL_HANDLE_H_

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>

#include <string>

#include "absl/status/status.h"

namespace baton {

// Thread-safe, and a value: while there is one, gRPC keeps the call's core.
class CallHandle final {
 public:
  // REQUIRES: the call is not over.
  explicit CallHandle(grpc::CallbackServerContext* context)
      : CallHandle(context->c_call()) {}
  CallHandle(const CallHandle& other) : CallHandle(other.call_) {}
  CallHandle& operator=(const CallHandle&) = delete;
  ~CallHandle() { grpc_call_unref(call_); }

  // What TryCancel does, but the client hears this code and message, without
  // details; it waits behind nothing that the client has not read. A call that
  // is over: nothing.
  void Cut(const absl::Status& status) const {
    const std::string message(status.message());
    grpc_call_cancel_with_status(call_,
                                 static_cast<grpc_status_code>(status.code()),
                                 message.c_str(), nullptr);
  }

 private:
  explicit CallHandle(grpc_call* call) : call_(call) { grpc_call_ref(call_); }

  grpc_call* const call_;
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_CALL_HANDLE_H_
