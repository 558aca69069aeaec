// A server-streaming call as a StreamQueue: the thin gRPC side of it.
#ifndef BATON_SERVER_EDGE_STREAM_REACTOR_H_
#define BATON_SERVER_EDGE_STREAM_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "server/edge/grpc_status.h"
#include "server/edge/stream_queue.h"

namespace baton {

// Bytes that may wait for one slow reader before its call is cut.
inline constexpr size_t kMaxQueuedStreamBytes = 256 * 1024;

// Send and End: one producer's thread at a time; the rest is gRPC's. The
// reactor deletes itself once End was called and the call is over: after End
// the producer must not touch it, before End it may always.
//
//   class TokenReactor final : public StreamReactor<Response, Traits> {
//     void OnPeerGone() override { engine_->Abort(id_); }   // only notifies
//   };
template <typename Message, typename Traits>
class StreamReactor : public grpc::ServerWriteReactor<Message> {
 public:
  // num_answers: that take turns on this stream; each may have as many bytes
  // waiting as a stream of its own.
  explicit StreamReactor(grpc::CallbackServerContext* context,
                         size_t num_answers = 1)
      : context_(context), queue_(num_answers * kMaxQueuedStreamBytes) {}

  void Send(Message message) { Do(queue_.Push(std::move(message))); }
  void End(absl::Status status) { Do(queue_.End(std::move(status))); }

 protected:
  ~StreamReactor() override = default;

  // The client is gone, or was cut. Must only notify: End comes from the
  // producer. May come after End, or not at all.
  virtual void OnPeerGone() = 0;
  // The call is over; `this` is deleted next.
  virtual void OnCallOver() {}

 private:
  using Queue = StreamQueue<Message, Traits>;

  void OnWriteDone(bool ok) final { Do(queue_.OnWriteDone(ok)); }
  void OnCancel() final {
    // First: after Do the call may be over.
    OnPeerGone();
    Do(queue_.OnPeerGone());
  }
  void OnDone() final {
    OnCallOver();
    delete this;
  }

  // Without the lock: OnDone may delete `this` on another thread before
  // StartWrite or Finish return.
  void Do(typename Queue::Action action) {
    switch (action) {
      case Queue::Action::kNothing:
        return;
      case Queue::Action::kWrite:
        this->StartWrite(queue_.message());
        return;
      case Queue::Action::kFinish:
        this->Finish(ToGrpcStatus(queue_.status()));
        return;
      case Queue::Action::kCut:
        context_->TryCancel();
        return;
    }
  }

  grpc::CallbackServerContext* const context_;
  Queue queue_;
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_STREAM_REACTOR_H_
