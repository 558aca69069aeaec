#include "comm/ucx_expert_exchange.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "comm/wire.h"

namespace baton {
namespace {

//   message := epoch:u64 process:u32 exchange:u32 part:u32 parts:u32 octet{*}
constexpr size_t kHeaderBytes = sizeof(uint64_t) + 4 * sizeof(uint32_t);
constexpr size_t kPartBytes = kMaxMessageBytes - kHeaderBytes;
constexpr uint32_t kMaxParts = 1 << 12;

// What is to be done wakes it; this bounds what a lost wake-up costs.
constexpr absl::Duration kIdleWait = absl::Seconds(1);

std::vector<uint32_t> RanksIn(RankRange range) {
  std::vector<uint32_t> ranks;
  for (int rank = range.first; rank < range.end; ++rank) {
    ranks.push_back(static_cast<uint32_t>(rank));
  }
  return ranks;
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxExpertExchange>> UcxExpertExchange::Create(
    const UcxExpertExchangeOptions& options) {
  const RankRange ranks = options.processes[options.process];
  ASSIGN_OR_RETURN(std::unique_ptr<SharedExpertExchange> local,
                   SharedExpertExchange::Create({.shape = options.shape,
                                                 .deadline = options.deadline,
                                                 .spins = options.spins,
                                                 .first_rank = ranks.first,
                                                 .end_rank = ranks.end}));
  ASSIGN_OR_RETURN(
      std::unique_ptr<UcxMessenger> messenger,
      UcxMessenger::Create(options.network_devices,
                           static_cast<uint32_t>(options.processes.size())));
  return std::unique_ptr<UcxExpertExchange>(
      new UcxExpertExchange(options, std::move(local), std::move(messenger)));
}

UcxExpertExchange::UcxExpertExchange(
    const UcxExpertExchangeOptions& options,
    std::unique_ptr<SharedExpertExchange> local,
    std::unique_ptr<UcxMessenger> messenger)
    : options_(options),
      local_(std::move(local)),
      messenger_(std::move(messenger)),
      messages_(options.shape, local_->boards(),
                options.processes[options.process]) {
  local_->SetBridge([this] {
    requested_.fetch_add(1);
    messenger_->Wake();
  });
}

UcxExpertExchange::~UcxExpertExchange() {
  local_->End();
  stopping_.store(true);
  messenger_->Wake();
  if (thread_.joinable()) thread_.join();
}

absl::Status UcxExpertExchange::Connect(
    uint64_t epoch, std::span<const std::string> addresses) {
  CHECK_EQ(addresses.size(), options_.processes.size());
  epoch_ = epoch;
  for (size_t i = 0; i < addresses.size(); ++i) {
    Process process;
    process.ranks = options_.processes[i];
    if (static_cast<int>(i) != options_.process) {
      ASSIGN_OR_RETURN(process.peer, messenger_->Connect(addresses[i]));
      process_of_peer_.emplace(process.peer, i);
    }
    processes_.push_back(std::move(process));
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void UcxExpertExchange::End() {
  local_->End();
  messenger_->Wake();
}

absl::Status UcxExpertExchange::status() const {
  {
    const absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
  }
  return local_->status();
}

void UcxExpertExchange::Run() {
  while (!stopping_.load()) {
    const bool handled = HandleEvents();
    const bool advanced = Advance();
    if (local_->ended()) {
      NoteMissing();
      CloseAll();
    }
    if (!handled && !advanced) messenger_->Wait(kIdleWait);
  }
  CloseAll();
}

bool UcxExpertExchange::HandleEvents() {
  events_.clear();
  messenger_->Poll(&events_);
  for (const TransportEvent& event : events_) {
    if (const auto* received = std::get_if<MessageReceived>(&event)) {
      const absl::Status status = HandleMessage(received->message);
      if (!status.ok()) Fail(status, {});
    } else if (const auto* failed = std::get_if<PeerFailed>(&event)) {
      const auto it = process_of_peer_.find(failed->peer);
      if (it == process_of_peer_.end()) continue;
      const RankRange ranks = processes_[it->second].ranks;
      Fail(absl::UnavailableError(
               absl::StrCat("ranks ", ranks.first, " to ", ranks.end - 1,
                            " are lost: ", failed->status.message())),
           RanksIn(ranks));
    }
  }
  return !events_.empty();
}

absl::Status UcxExpertExchange::HandleMessage(std::string_view message) {
  WireReader in(message);
  const auto epoch = in.Int<uint64_t>();
  const auto index = in.Int<uint32_t>();
  const auto exchange = in.Int<uint32_t>();
  const auto part = in.Int<uint32_t>();
  const auto num_parts = in.Int<uint32_t>();
  if (epoch != epoch_) return absl::OkStatus();  // Late, or foreign.
  if (message.size() < kHeaderBytes || index >= processes_.size() ||
      processes_[index].peer == PeerId() || exchange <= done_ ||
      exchange > done_ + 2 || part >= num_parts || num_parts > kMaxParts) {
    return absl::InvalidArgumentError("a message that no process sends");
  }
  Inbound& inbound = processes_[index].inbound[exchange % 2];
  if (inbound.exchange != exchange) {
    inbound = {exchange, std::vector<std::string>(num_parts), num_parts};
  }
  if (part >= inbound.parts.size() || inbound.num_missing == 0) {
    return absl::InvalidArgumentError("a message that no process sends");
  }
  inbound.parts[part] = in.rest();
  --inbound.num_missing;
  return absl::OkStatus();
}

bool UcxExpertExchange::Advance() {
  if (local_->ended()) return false;
  bool advanced = false;
  if (sent_ < requested_.load()) {
    ++sent_;
    for (Process& process : processes_) SendTo(&process, sent_);
    advanced = true;
  }
  if (done_ < sent_ && AllAreHere(sent_)) {
    const absl::Status status = TakeMessages(sent_);
    if (!status.ok()) {
      Fail(status, {});
      return true;
    }
    ++done_;
    local_->Release();
    advanced = true;
  }
  return advanced;
}

void UcxExpertExchange::SendTo(Process* process, uint32_t exchange) {
  if (process->peer == PeerId()) return;
  const std::string content = exchange % 2 == 1
                                  ? messages_.WriteTokens(process->ranks)
                                  : messages_.WriteOutputs(process->ranks);
  const std::string_view all = content;
  const size_t num_parts =
      std::max<size_t>(1, (all.size() + kPartBytes - 1) / kPartBytes);
  CHECK_LE(num_parts, kMaxParts);
  for (size_t part = 0; part < num_parts; ++part) {
    std::string message = WireWriter()
                              .Int(epoch_)
                              .Int(static_cast<uint32_t>(options_.process))
                              .Int(exchange)
                              .Int(static_cast<uint32_t>(part))
                              .Int(static_cast<uint32_t>(num_parts))
                              .Take();
    message += all.substr(part * kPartBytes, kPartBytes);
    messenger_->SendMessage(process->peer, std::move(message));
  }
}

bool UcxExpertExchange::IsHere(const Process& process, uint32_t exchange) {
  const Inbound& inbound = process.inbound[exchange % 2];
  return process.peer == PeerId() ||
         (inbound.exchange == exchange && inbound.num_missing == 0);
}

bool UcxExpertExchange::AllAreHere(uint32_t exchange) const {
  return std::ranges::all_of(processes_, [&](const Process& process) {
    return IsHere(process, exchange);
  });
}

absl::Status UcxExpertExchange::TakeMessages(uint32_t exchange) {
  for (Process& process : processes_) {
    if (process.peer == PeerId()) continue;
    std::vector<std::string>& parts = process.inbound[exchange % 2].parts;
    std::string whole = std::move(parts[0]);
    for (size_t i = 1; i < parts.size(); ++i) whole += parts[i];
    const bool good = exchange % 2 == 1
                          ? messages_.ReadTokens(process.ranks, whole)
                          : messages_.ReadOutputs(process.ranks, whole);
    if (good) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rows of ranks ", process.ranks.first, " to ",
                     process.ranks.end - 1, " do not fit this group"));
  }
  return absl::OkStatus();
}

void UcxExpertExchange::Fail(absl::Status status,
                             std::vector<uint32_t> lost_ranks) {
  {
    const absl::MutexLock lock(&mutex_);
    // What follows from our own end is no reason.
    if (failure_.ok() && !local_->ended()) {
      failure_ = std::move(status);
      lost_ranks_ = std::move(lost_ranks);
    }
  }
  local_->End();
}

void UcxExpertExchange::NoteMissing() {
  if (closed_) return;
  std::vector<uint32_t> missing = MissingRanks();
  const absl::MutexLock lock(&mutex_);
  if (failure_.ok()) lost_ranks_ = std::move(missing);
  has_noted_ = true;
}

// Local ranks waited for too long: for each other, or for these processes.
std::vector<uint32_t> UcxExpertExchange::MissingRanks() const {
  if (!absl::IsDeadlineExceeded(local_->status())) return {};
  std::vector<uint32_t> missing = local_->lost_ranks();
  if (!missing.empty()) return missing;
  for (const Process& process : processes_) {
    if (IsHere(process, sent_)) continue;
    for (const uint32_t rank : RanksIn(process.ranks)) missing.push_back(rank);
  }
  return missing;
}

std::vector<uint32_t> UcxExpertExchange::lost_ranks() const {
  // A deadline of local ranks wakes nobody else.
  const bool will_note = thread_.joinable() && local_->ended();
  if (will_note) messenger_->Wake();
  const absl::MutexLock lock(&mutex_);
  if (will_note) mutex_.Await(absl::Condition(&has_noted_));
  return lost_ranks_;
}

void UcxExpertExchange::CloseAll() {
  if (std::exchange(closed_, true)) return;
  for (const Process& process : processes_) messenger_->ClosePeer(process.peer);
}

}  // namespace baton
