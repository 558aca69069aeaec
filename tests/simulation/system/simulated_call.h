// Server-streaming calls between processes that may vanish, over links that may
// break or fall silent: what gRPC is to the real ones.
//
// Each end lives on its own: the client's ends once, with a status; the
// server's when it has said Finish, or its process is gone. What one end knows
// of the other came over the link, in order, after some delay each.
#ifndef BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_CALL_H_
#define BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_CALL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/strong_int.h"
#include "tests/simulation/system/event_loop.h"

namespace baton {

BATON_DEFINE_STRONG_INT(ProcessId, uint32_t);

class CallNetwork;

// One thread. Shared by both ends and by what is on its way between them, each
// of which may be the last one.
class SimulatedCall final : public std::enable_shared_from_this<SimulatedCall> {
 public:
  using Event = EventLoop::Event;
  using Accept = absl::AnyInvocable<void(SimulatedCall*)>;
  using OnEnd = absl::AnyInvocable<void(const absl::Status&)>;
  struct ServerEnd {
    absl::AnyInvocable<void(bool)> on_write_done;
    absl::AnyInvocable<void()> on_cancel;  // At most once.
  };

  SimulatedCall(CallNetwork* network, uint64_t number, ProcessId client,
                ProcessId server)
      : network_(network), number_(number), client_(client), server_(server) {}

  // --- The client's end.
  void Cancel();
  // Reads slowly: what comes waits until it goes on, and so does the end, but
  // for Cancel's.
  void SetReading(bool reading);

  // --- The server's end, from its Accept on.
  void Serve(ServerEnd end) { server_end_ = std::move(end); }
  // on_write_done follows; one at a time.
  void Write(Event deliver);
  void Finish(const absl::Status& status);
  // The client is told this, whatever Finish says after it.
  void Cut(const absl::Status& status);
  absl::Time deadline() const { return deadline_; }

  // --- What happens to it.
  void Break();
  void ClientDied(absl::Duration noticed_after);
  void ServerDied(absl::Duration noticed_after);

  uint64_t number() const { return number_; }
  ProcessId client() const { return client_; }
  ProcessId server() const { return server_; }
  bool over() const { return client_over_ && server_over_; }
  bool client_over() const { return client_over_; }

 private:
  friend class CallNetwork;
  struct Parcel {
    absl::Time due;
    Event deliver;
  };
  // What is on its way to one end.
  struct Pipe {
    std::deque<Parcel> parcels;
    absl::Time newest_due = absl::InfinitePast();
    bool armed = false;
  };

  void Begin(Accept accept, absl::Time deadline, OnEnd on_end);
  void OnRequest(Accept& accept);
  void Send(Pipe* pipe, Event deliver);
  void Arm(Pipe* pipe);
  void Pump(Pipe* pipe);
  // Of both pipes, after the link has healed.
  void Resume();
  bool IsBlocked(const Pipe& pipe) const;
  void BreakIfBlocked();
  void TellWriteDone();
  void ReadOn();
  void EndClient(const absl::Status& status);
  void CancelServer();

  CallNetwork* const network_;
  const uint64_t number_;
  const ProcessId client_;
  const ProcessId server_;
  absl::Time deadline_ = absl::InfiniteFuture();
  Pipe to_server_;
  Pipe to_client_;
  OnEnd on_end_;
  bool client_over_ = false;
  bool reading_ = true;
  std::optional<absl::Status> unread_end_;
  ServerEnd server_end_;
  bool accepted_ = false;
  bool server_over_ = false;
  bool server_cancelled_ = false;
  bool reset_by_server_ = false;
  bool writing_ = false;
};

// One thread.
class CallNetwork final {
 public:
  struct Options {
    absl::Duration shortest_delay;
    absl::Duration longest_delay;
    // A link that is silent for so long is given up by both its ends.
    absl::Duration keepalive;
  };

  CallNetwork(const Options& options, EventLoop* loop)
      : options_(options), loop_(loop) {}

  // Calls to a process that does not listen are refused.
  void SetListening(ProcessId process, bool listening);
  // `told`: its peers learn it at once; else by keepalive.
  void OnDied(ProcessId process, bool told);

  // `accept` runs at the server; with InfiniteFuture there is no deadline.
  std::shared_ptr<SimulatedCall> Begin(ProcessId client, ProcessId server,
                                       SimulatedCall::Accept accept,
                                       absl::Time deadline,
                                       SimulatedCall::OnEnd on_end);

  // From one to the other, not back.
  void Block(ProcessId from, ProcessId to);
  void Heal(ProcessId from, ProcessId to);
  bool IsBlocked(ProcessId from, ProcessId to) const {
    return blocked_.contains({from, to});
  }
  // All calls between them are lost; how many.
  int BreakLink(ProcessId one, ProcessId other);
  // One of those from or to it; false if there are none.
  bool BreakOneOf(ProcessId process);

  // Calls of which an end lives.
  size_t num_live();
  EventLoop& loop() { return *loop_; }
  absl::Duration Delay() {
    return loop_->dice().Between(options_.shortest_delay,
                                 options_.longest_delay);
  }
  absl::Duration keepalive() const { return options_.keepalive; }

 private:
  friend class SimulatedCall;
  using Link = std::pair<ProcessId, ProcessId>;

  std::vector<std::shared_ptr<SimulatedCall>> CallsBetween(ProcessId one,
                                                           ProcessId other);
  void GiveUpIfSilent(ProcessId one, ProcessId other, uint64_t block_number);
  void Collect();

  const Options options_;
  EventLoop* const loop_;
  uint64_t num_calls_ = 0;
  uint64_t num_blocks_ = 0;
  std::set<ProcessId> listening_;
  std::map<Link, uint64_t> blocked_;  // By its number.
  // See SimulatedCall.
  std::map<uint64_t, std::shared_ptr<SimulatedCall>> calls_;
};

}  // namespace baton

#endif  // BATON_TESTS_SIMULATION_SYSTEM_SIMULATED_CALL_H_
