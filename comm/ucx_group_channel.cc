#include "comm/ucx_group_channel.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "comm/wire.h"

namespace baton {
namespace {

//   message := epoch:u64 process:u32 number:u64 octet{*}
// Numbered from 0 by its sender, for each receiver: UCX promises no order.
constexpr size_t kHeaderBytes = 2 * sizeof(uint64_t) + sizeof(uint32_t);

}  // namespace

absl::StatusOr<std::unique_ptr<UcxGroupChannel>> UcxGroupChannel::Create(
    const std::string& network_devices, uint32_t max_processes) {
  ASSIGN_OR_RETURN(std::unique_ptr<UcxMessenger> messenger,
                   UcxMessenger::Create(network_devices, max_processes));
  return std::unique_ptr<UcxGroupChannel>(
      new UcxGroupChannel(std::move(messenger)));
}

UcxGroupChannel::UcxGroupChannel(std::unique_ptr<UcxMessenger> messenger)
    : address_(messenger->address()), messenger_(std::move(messenger)) {}

absl::Status UcxGroupChannel::Connect(uint64_t epoch, uint32_t process,
                                      std::span<const std::string> addresses) {
  CHECK_LT(process, addresses.size());
  CHECK(processes_.empty());
  epoch_ = epoch;
  process_ = process;
  processes_.resize(addresses.size());
  for (uint32_t p = 0; p < addresses.size(); ++p) {
    if (p == process) continue;
    ASSIGN_OR_RETURN(processes_[p].peer, messenger_->Connect(addresses[p]));
    process_of_peer_.emplace(processes_[p].peer, p);
  }
  return absl::OkStatus();
}

void UcxGroupChannel::Send(uint32_t process, std::string_view message) {
  CHECK_LT(process, processes_.size());
  CHECK_NE(process, process_);
  CHECK_LE(message.size(), kMaxMessageBytes);
  if (!is_open()) return;
  Process& to = processes_[process];
  std::string bytes =
      WireWriter().Int(epoch_).Int(process_).Int(to.num_sent++).Take();
  bytes.append(message);
  messenger_->SendMessage(to.peer, std::move(bytes));
}

void UcxGroupChannel::Receive(std::vector<ChannelMessage>* received) {
  Poll();
  received->clear();
  if (!ended_.load()) std::swap(*received, arrived_);
}

void UcxGroupChannel::Wait(absl::Duration timeout) {
  // First, so that a message that is here ends it.
  Poll();
  if (is_open() && arrived_.empty()) messenger_->Wait(timeout);
}

void UcxGroupChannel::Wake() {
  const absl::MutexLock lock(&mutex_);
  if (messenger_ != nullptr) messenger_->Wake();
}

void UcxGroupChannel::End() {
  ended_.store(true);
  Wake();
}

absl::Status UcxGroupChannel::status() const {
  {
    const absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
  }
  return ended_.load() ? absl::UnavailableError("the group's channel was ended")
                       : absl::OkStatus();
}

void UcxGroupChannel::Poll() {
  if (ended_.load()) Close();
  if (messenger_ == nullptr) return;
  events_.clear();
  messenger_->Poll(&events_);
  for (const TransportEvent& event : events_) {
    if (const auto* received = std::get_if<MessageReceived>(&event)) {
      HandleMessage(received->message);
    } else if (const auto* failed = std::get_if<PeerFailed>(&event)) {
      const auto it = process_of_peer_.find(failed->peer);
      if (it == process_of_peer_.end()) continue;
      const absl::string_view why = failed->status.message();
      Lose(it->second, {why.data(), why.size()});
    }
  }
}

void UcxGroupChannel::HandleMessage(std::string_view bytes) {
  WireReader in(bytes);
  const auto epoch = in.Int<uint64_t>();
  const auto from = in.Int<uint32_t>();
  const auto number = in.Int<uint64_t>();
  const std::string_view message = in.rest();
  if (bytes.size() < kHeaderBytes || message.size() > kMaxMessageBytes ||
      epoch != epoch_ || from >= processes_.size() || from == process_ ||
      number < processes_[from].num_received) {
    ++num_dropped_;
    return;
  }
  Process& sender = processes_[from];
  if (number == sender.num_received) {
    Arrive(from, message);
  } else if (sender.early.size() < kMaxEarlyMessages) {
    if (!sender.early.emplace(number, message).second) ++num_dropped_;
  } else {
    Lose(from, "a message is missing");
  }
}

void UcxGroupChannel::Arrive(uint32_t from, std::string_view message) {
  Process& sender = processes_[from];
  arrived_.push_back({from, std::string(message)});
  ++sender.num_received;
  for (auto next = sender.early.begin();
       next != sender.early.end() && next->first == sender.num_received;
       next = sender.early.erase(next)) {
    arrived_.push_back({from, std::move(next->second)});
    ++sender.num_received;
  }
}

void UcxGroupChannel::Lose(uint32_t process, std::string_view why) {
  // What follows from our own end is no reason.
  if (!is_open()) return;
  lost_ = true;
  const absl::MutexLock lock(&mutex_);
  failure_ = absl::UnavailableError(absl::StrCat(
      "process ", process,
      " of the group is lost: ", absl::string_view(why.data(), why.size())));
}

void UcxGroupChannel::Close() {
  std::unique_ptr<UcxMessenger> closed;
  const absl::MutexLock lock(&mutex_);
  closed = std::move(messenger_);
}

}  // namespace baton
