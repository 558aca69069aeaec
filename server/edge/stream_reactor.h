// A server-streaming call as a StreamQueue: the thin gRPC side of it.
#ifndef BATON_SERVER_EDGE_STREAM_REACTOR_H_
#define BATON_SERVER_EDGE_STREAM_REACTOR_H_

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/status/status.h"
#include "server/edge/call_handle.h"
#include "server/edge/grpc_status.h"
#include "server/edge/stream_budget.h"
#include "server/edge/stream_queue.h"

namespace baton {

// Send and End: one producer's thread at a time; the rest is gRPC's. The
// reactor deletes itself once End was called and the call is over: after End
// the producer must not touch it, before End it may always.
//
//   class TokenReactor final : public StreamReactor<Response, Traits> {
//     void OnPeerGone() override { engine_->Abort(id_); }   // only notifies
//     void OnFlow(bool paused) override { engine_->SetPaused(id_, paused); }
//   };
template <typename Message, typename Traits>
class StreamReactor : public grpc::ServerWriteReactor<Message> {
 public:
  // Borrows the budget.
  StreamReactor(grpc::CallbackServerContext* context, StreamBudget* budget)
      : account_(budget, [call = CallHandle(context)](
                             const absl::Status& status) { call.Cut(status); }),
        queue_(&account_) {}

  void Send(Message message) {
    const Action action = queue_.Push(std::move(message));
    TellFlow();
    Do(action);
    account_.Settle();
  }
  void End(absl::Status status) { Do(queue_.End(std::move(status))); }

 protected:
  ~StreamReactor() override = default;

  // The client is gone, or was cut. Must only notify: End comes from the
  // producer. May come after End, or not at all.
  virtual void OnPeerGone() = 0;
  // The reader has fallen behind, or has caught up: what is sent from now on
  // waits in memory, or does no more. In their order, one at a time, in the
  // producer's Send or on gRPC's threads. Must only notify.
  virtual void OnFlow(bool paused) = 0;
  // The call is over; `this` is deleted next.
  virtual void OnCallOver() {}

  // Of a call whose peer is gone: since it was too slow.
  bool is_cut() const { return account_.is_cut(); }

 private:
  using Queue = StreamQueue<Message, Traits>;
  using Action = typename Queue::Action;

  void OnWriteDone(bool ok) final {
    const Action action = queue_.OnWriteDone(ok);
    TellFlow();
    Do(action);
  }
  void OnCancel() final {
    // First: after Do the call may be over.
    OnPeerGone();
    Do(queue_.OnPeerGone());
  }
  void OnDone() final {
    OnCallOver();
    delete this;
  }

  // Before End, or in gRPC's call, which OnDone waits for.
  void TellFlow() {
    while (const auto flow = queue_.TakeFlow()) {
      OnFlow(*flow == Queue::Flow::kPause);
      queue_.FlowTold();
    }
  }

  // Without the lock: OnDone may delete `this` on another thread before
  // StartWrite or Finish return.
  void Do(Action action) {
    switch (action) {
      case Action::kNothing:
        return;
      case Action::kWrite:
        this->StartWrite(queue_.message());
        return;
      case Action::kFinish:
        this->Finish(ToGrpcStatus(queue_.status()));
        return;
    }
  }

  StreamBudget::Account account_;
  Queue queue_;
};

}  // namespace baton

#endif  // BATON_SERVER_EDGE_STREAM_REACTOR_H_
