// A simulated call as a StreamQueue: what StreamReactor is over gRPC.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_SERVER_STREAM_H_
#define BATON_TESTS_SIMULATION_SYSTEM_SERVER_STREAM_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "server/edge/stream_budget.h"
#include "server/edge/stream_queue.h"
#include "tests/simulation/system/process_streams.h"
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
    std::function<void(bool paused)> on_flow;
    std::function<void()> on_over;
  };

  // What listens must only notify. The streams are shared: calls may outlive
  // what is left of their process.
  ServerStream(StreamStart<Message> start,
               std::shared_ptr<ProcessStreams> streams, Listener listener)
      : call_(start.call->shared_from_this()),
        on_message_(std::move(start.on_message)),
        listener_(std::move(listener)),
        streams_(std::move(streams)),
        account_(
            streams_->budget(),
            [call = call_](const absl::Status& status) { call->Cut(status); }),
        queue_(&account_) {
    streams_->OnBegun();
    call_->Serve({.on_write_done =
                      [this](bool ok) {
                        const Action action = queue_.OnWriteDone(ok);
                        TellFlow();
                        Do(action);
                      },
                  .on_cancel =
                      [this] {
                        listener_.on_peer_gone();
                        Do(queue_.OnPeerGone());
                      }});
  }

  ~ServerStream() {
    if (!is_over_) streams_->OnOver();
  }
  ServerStream(const ServerStream&) = delete;
  ServerStream& operator=(const ServerStream&) = delete;

  void Send(Message message) {
    const Action action = queue_.Push(std::move(message));
    TellFlow();
    Do(action);
    account_.Settle();
  }
  void End(absl::Status status) { Do(queue_.End(std::move(status))); }
  // Nothing is pending any more.
  bool is_over() const { return is_over_; }
  // Of a call whose peer is gone: since it was too slow.
  bool is_cut() const { return account_.is_cut(); }

 private:
  using Queue = StreamQueue<Message, Traits>;
  using Action = typename Queue::Action;

  void TellFlow() {
    while (const auto flow = queue_.TakeFlow()) {
      listener_.on_flow(*flow == Queue::Flow::kPause);
      queue_.FlowTold();
    }
  }

  void Do(Action action) {
    switch (action) {
      case Action::kNothing:
        return;
      case Action::kWrite:
        return call_->Write([message = *queue_.message(),
                             to = on_message_]() mutable { to(&message); });
      case Action::kFinish:
        is_over_ = true;
        streams_->OnOver();
        call_->Finish(queue_.status());
        return listener_.on_over();
    }
  }

  const std::shared_ptr<SimulatedCall> call_;  // See SimulatedCall.
  const std::function<void(Message*)> on_message_;
  const Listener listener_;
  const std::shared_ptr<ProcessStreams> streams_;
  StreamBudget::Account account_;
  Queue queue_;
  bool is_over_ = false;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_SERVER_STREAM_H_
