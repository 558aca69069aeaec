// A simulated call as a StreamQueue: what StreamReactor is over gRPC.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_SERVER_STREAM_H_
#define BATON_TESTS_SIMULATION_SYSTEM_SERVER_STREAM_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "server/edge/stream_queue.h"
#include "tests/simulation/system/simulated_call.h"

namespace baton {

// A call that has begun, as its server finds it.
template <typename Message>
struct StreamStart {
  SimulatedCall* call = nullptr;
  std::function<void(Message*)> on_message;  // At the client.
};

// One thread. Destroyed once is_over(), or with its process.
template <typename Message, typename Traits>
class ServerStream final {
 public:
  struct Listener {
    std::function<void()> on_peer_gone;
    std::function<void()> on_over;
  };

  // What listens must only notify.
  ServerStream(StreamStart<Message> start, size_t max_queued_bytes,
               Listener listener)
      : call_(start.call->shared_from_this()),
        on_message_(std::move(start.on_message)),
        listener_(std::move(listener)),
        queue_(max_queued_bytes) {
    call_->Serve(
        {.on_write_done = [this](bool ok) { Do(queue_.OnWriteDone(ok)); },
         .on_cancel =
             [this] {
               listener_.on_peer_gone();
               Do(queue_.OnPeerGone());
             }});
  }

  void Send(Message message) { Do(queue_.Push(std::move(message))); }
  void End(absl::Status status) { Do(queue_.End(std::move(status))); }
  // Nothing is pending any more.
  bool is_over() const { return is_over_; }

 private:
  using Queue = StreamQueue<Message, Traits>;

  void Do(typename Queue::Action action) {
    switch (action) {
      case Queue::Action::kNothing:
        return;
      case Queue::Action::kWrite:
        return call_->Write([message = *queue_.message(),
                             to = on_message_]() mutable { to(&message); });
      case Queue::Action::kFinish:
        is_over_ = true;
        call_->Finish(queue_.status());
        return listener_.on_over();
      case Queue::Action::kCut:
        return call_->CancelFromServer();
    }
  }

  const std::shared_ptr<SimulatedCall> call_;  // See SimulatedCall.
  const std::function<void(Message*)> on_message_;
  const Listener listener_;
  Queue queue_;
  bool is_over_ = false;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_SERVER_STREAM_H_
