#include "tests/simulation/system/simulated_call.h"

#include <algorithm>
#include <vector>

#include "base/logging.h"
#include "server/edge/grpc_status.h"

namespace baton {
namespace {

// Messages on their way to a client before a write has to wait.
constexpr size_t kWindow = 4;

absl::Status ConnectionLost() {
  return absl::UnavailableError("Socket closed");
}

}  // namespace

void SimulatedCall::Begin(Accept accept, absl::Time deadline, OnEnd on_end) {
  deadline_ = deadline;
  on_end_ = std::move(on_end);
  EventLoop& loop = network_->loop();
  const auto self = shared_from_this();
  Send(&to_server_,
       [this, accept = std::move(accept)]() mutable { OnRequest(accept); });
  if (IsBlocked(to_server_) || IsBlocked(to_client_)) {
    loop.After(network_->keepalive(), [self] { self->BreakIfBlocked(); });
  }
  if (deadline == absl::InfiniteFuture()) return;
  loop.After(deadline - loop.now(), [self] {
    self->EndClient(absl::DeadlineExceededError("Deadline Exceeded"));
  });
  loop.After(deadline - loop.now() + network_->Delay(),
             [self] { self->CancelServer(); });
}

void SimulatedCall::OnRequest(Accept& accept) {
  if (!network_->listening_.contains(server_)) {
    server_over_ = true;
    Send(&to_client_,
         [this] { EndClient(absl::UnavailableError("Connection refused")); });
    return;
  }
  accepted_ = true;
  accept(this);
}

void SimulatedCall::Cancel() {
  // Soon: never within the call.
  network_->loop().After(network_->Delay(), [self = shared_from_this()] {
    self->reading_ = true;
    self->EndClient(absl::CancelledError("CANCELLED"));
  });
}

void SimulatedCall::SetReading(bool reading) {
  reading_ = reading;
  if (!reading) return;
  // Soon: never within the call.
  network_->loop().After(absl::ZeroDuration(),
                         [self = shared_from_this()] { self->ReadOn(); });
}

void SimulatedCall::ReadOn() {
  if (unread_end_.has_value()) EndClient(absl::Status(*unread_end_));
  Pump(&to_client_);
}

void SimulatedCall::Write(Event deliver) {
  if (server_over_) return;  // The process is gone: nobody waits.
  CHECK(!writing_) << "two writes at a time";
  writing_ = true;
  if (!server_cancelled_ && !client_over_) {
    Send(&to_client_, std::move(deliver));
  }
  TellWriteDone();
}

// When there is room on the way.
void SimulatedCall::TellWriteDone() {
  if (!writing_ || server_over_) return;
  if (!server_cancelled_ && to_client_.parcels.size() >= kWindow) return;
  writing_ = false;
  network_->loop().After(absl::ZeroDuration(), [self = shared_from_this()] {
    if (!self->server_over_) {
      self->server_end_.on_write_done(!self->server_cancelled_);
    }
  });
}

void SimulatedCall::Finish(const absl::Status& status) {
  if (server_over_) return;
  CHECK(!writing_) << "an end within a write";
  server_over_ = true;
  if (server_cancelled_ || reset_by_server_) return;
  // Codes, texts and details as they arrive over the wire.
  Send(&to_client_, [this, arrived = FromGrpcStatus(ToGrpcStatus(status))] {
    EndClient(arrived);
  });
}

void SimulatedCall::Cut(const absl::Status& status) {
  if (server_over_) return;
  reset_by_server_ = true;
  network_->loop().After(network_->Delay(),
                         [self = shared_from_this(),
                          arrived = FromGrpcStatus(ToGrpcStatus(status))] {
                           self->EndClient(arrived);
                         });
  network_->loop().After(absl::ZeroDuration(),
                         [self = shared_from_this()] { self->CancelServer(); });
}

void SimulatedCall::Break() {
  EventLoop& loop = network_->loop();
  const auto self = shared_from_this();
  loop.After(network_->Delay(), [self] { self->EndClient(ConnectionLost()); });
  loop.After(network_->Delay(), [self] { self->CancelServer(); });
}

void SimulatedCall::BreakIfBlocked() {
  if (IsBlocked(to_server_) || IsBlocked(to_client_)) Break();
}

void SimulatedCall::ClientDied(absl::Duration noticed_after) {
  client_over_ = true;
  on_end_ = nullptr;
  to_client_.parcels.clear();
  TellWriteDone();
  network_->loop().After(noticed_after,
                         [self = shared_from_this()] { self->CancelServer(); });
}

void SimulatedCall::ServerDied(absl::Duration noticed_after) {
  server_over_ = true;
  server_end_ = {};
  to_server_.parcels.clear();
  network_->loop().After(noticed_after, [self = shared_from_this()] {
    self->EndClient(ConnectionLost());
  });
}

void SimulatedCall::Send(Pipe* pipe, Event deliver) {
  EventLoop& loop = network_->loop();
  pipe->newest_due = std::max(pipe->newest_due, loop.now() + network_->Delay());
  pipe->parcels.push_back({pipe->newest_due, std::move(deliver)});
  Arm(pipe);
}

void SimulatedCall::Arm(Pipe* pipe) {
  if (pipe->armed || pipe->parcels.empty()) return;
  pipe->armed = true;
  EventLoop& loop = network_->loop();
  loop.After(pipe->parcels.front().due - loop.now(),
             [self = shared_from_this(), pipe] {
               pipe->armed = false;
               self->Pump(pipe);
             });
}

void SimulatedCall::Pump(Pipe* pipe) {
  const auto self = shared_from_this();
  EventLoop& loop = network_->loop();
  while (!pipe->parcels.empty() && !IsBlocked(*pipe)) {
    if (pipe == &to_client_ && !reading_) return;
    if (pipe->parcels.front().due > loop.now()) return Arm(pipe);
    Event deliver = std::move(pipe->parcels.front().deliver);
    pipe->parcels.pop_front();
    loop.Note(pipe == &to_client_ ? "to client" : "to server", number_);
    deliver();
    if (pipe == &to_client_) TellWriteDone();
  }
}

void SimulatedCall::Resume() {
  Pump(&to_server_);
  Pump(&to_client_);
}

bool SimulatedCall::IsBlocked(const Pipe& pipe) const {
  return &pipe == &to_client_ ? network_->IsBlocked(server_, client_)
                              : network_->IsBlocked(client_, server_);
}

void SimulatedCall::EndClient(const absl::Status& status) {
  if (client_over_) return;
  if (!reading_) {
    if (!unread_end_.has_value()) unread_end_ = status;
    return;
  }
  client_over_ = true;
  network_->loop().Note("client end", number_,
                        static_cast<uint64_t>(status.code()));
  to_client_.parcels.clear();
  OnEnd on_end = std::exchange(on_end_, nullptr);
  if (!server_over_) {
    Send(&to_server_, [this] { CancelServer(); });
    TellWriteDone();
  }
  if (on_end) on_end(status);
}

void SimulatedCall::CancelServer() {
  if (server_over_ || std::exchange(server_cancelled_, true)) return;
  network_->loop().Note("server cancel", number_);
  to_client_.parcels.clear();
  if (!accepted_) {
    server_over_ = true;
    to_server_.parcels.clear();
    return;
  }
  server_end_.on_cancel();
  TellWriteDone();
}

void CallNetwork::SetListening(ProcessId process, bool listening) {
  if (listening) {
    listening_.insert(process);
  } else {
    listening_.erase(process);
  }
}

void CallNetwork::OnDied(ProcessId process, bool told) {
  SetListening(process, false);
  Collect();
  for (const auto& [number, call] : calls_) {
    const absl::Duration noticed_after = told ? Delay() : keepalive();
    if (call->client() == process) call->ClientDied(noticed_after);
    if (call->server() == process) call->ServerDied(noticed_after);
  }
}

std::shared_ptr<SimulatedCall> CallNetwork::Begin(ProcessId client,
                                                  ProcessId server,
                                                  SimulatedCall::Accept accept,
                                                  absl::Time deadline,
                                                  SimulatedCall::OnEnd on_end) {
  const uint64_t number = ++num_calls_;
  loop_->Note("call", number,
              (uint64_t{client.value()} << 32) | server.value());
  auto call = std::make_shared<SimulatedCall>(this, number, client, server);
  if (number % 16 == 0) Collect();
  calls_.emplace(number, call);
  call->Begin(std::move(accept), deadline, std::move(on_end));
  return call;
}

void CallNetwork::Block(ProcessId from, ProcessId to) {
  const uint64_t number = ++num_blocks_;
  blocked_[{from, to}] = number;
  loop_->Note("block", from.value(), to.value());
  loop_->After(keepalive(),
               [this, from, to, number] { GiveUpIfSilent(from, to, number); });
}

void CallNetwork::Heal(ProcessId from, ProcessId to) {
  if (blocked_.erase({from, to}) == 0) return;
  loop_->Note("heal", from.value(), to.value());
  for (const auto& call : CallsBetween(from, to)) call->Resume();
}

void CallNetwork::GiveUpIfSilent(ProcessId one, ProcessId other,
                                 uint64_t block_number) {
  const auto block = blocked_.find({one, other});
  if (block == blocked_.end() || block->second != block_number) return;
  for (const auto& call : CallsBetween(one, other)) call->Break();
}

int CallNetwork::BreakLink(ProcessId one, ProcessId other) {
  const auto calls = CallsBetween(one, other);
  for (const auto& call : calls) call->Break();
  return static_cast<int>(calls.size());
}

bool CallNetwork::BreakOneOf(ProcessId process) {
  Collect();
  std::vector<SimulatedCall*> theirs;
  for (const auto& [number, call] : calls_) {
    const bool is_theirs =
        call->client() == process || call->server() == process;
    if (is_theirs && !call->client_over()) theirs.push_back(call.get());
  }
  if (theirs.empty()) return false;
  theirs[loop_->dice().Bits() % theirs.size()]->Break();
  return true;
}

size_t CallNetwork::num_live() {
  Collect();
  return calls_.size();
}

std::vector<std::shared_ptr<SimulatedCall>> CallNetwork::CallsBetween(
    ProcessId one, ProcessId other) {
  Collect();
  std::vector<std::shared_ptr<SimulatedCall>> calls;
  for (const auto& [number, call] : calls_) {
    if ((call->client() == one && call->server() == other) ||
        (call->client() == other && call->server() == one)) {
      calls.push_back(call);
    }
  }
  return calls;
}

void CallNetwork::Collect() {
  std::erase_if(calls_, [](const auto& call) { return call.second->over(); });
}

}  // namespace baton
