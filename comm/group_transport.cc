#include "comm/group_transport.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "comm/group_agreement.h"
#include "comm/local_group_channel.h"
#include "comm/wire.h"

namespace baton {
namespace {

// address := exchange_path:bytes channel_path:bytes
//            exchange_address:bytes channel_address:bytes
// Paths are the leader's; what there is none of is empty.
struct Address {
  std::string exchange_path = {};
  std::string channel_path = {};
  std::string exchange_address = {};
  std::string channel_address = {};
};

std::string Encode(const Address& address) {
  return WireWriter()
      .Bytes(address.exchange_path)
      .Bytes(address.channel_path)
      .Bytes(address.exchange_address)
      .Bytes(address.channel_address)
      .Take();
}

absl::StatusOr<Address> Decode(const GroupMember& member) {
  WireReader in(member.transport_address);
  Address address;
  address.exchange_path = in.Bytes();
  address.channel_path = in.Bytes();
  address.exchange_address = in.Bytes();
  address.channel_address = in.Bytes();
  if (in.done()) return address;
  return absl::InvalidArgumentError(absl::StrCat(
      "ranks ", FormatRanks(member), " gave an address that is none"));
}

bool ShareAHost(const GroupEpoch& group) {
  return std::ranges::all_of(group.members, [&](const GroupMember& member) {
    return member.host_id == group.members.front().host_id;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<GroupTransport>> GroupTransport::Create(
    const GroupTransportOptions& options) {
  CHECK_EQ(static_cast<uint32_t>(options.shape.num_ranks) % options.local_ranks,
           0u);
  std::unique_ptr<GroupTransport> transport(new GroupTransport(options));
  RETURN_IF_ERROR(transport->Prepare());
  return transport;
}

absl::Status GroupTransport::Prepare() {
  const uint32_t num_processes = options_.num_processes();
  Address address;
  if (options_.process == 0 &&
      (options_.mode != UcxMode::kTcp || num_processes == 1)) {
    ASSIGN_OR_RETURN(shared_exchange_, SharedExpertExchange::Create(
                                           {.shape = options_.shape,
                                            .deadline = options_.deadline}));
    address.exchange_path = shared_exchange_->path();
  }
  if (num_processes == 1) return absl::OkStatus();
  if (shared_exchange_ != nullptr) {
    ASSIGN_OR_RETURN(shared_memory_, SharedGroupMemory::Create(num_processes));
    address.channel_path = shared_memory_->path();
  }
  if (options_.mode != UcxMode::kShm) {
    UcxExpertExchangeOptions exchange = {
        .shape = options_.shape,
        .deadline = options_.deadline,
        .processes = {},
        .process = static_cast<int>(options_.process),
        .network_devices = options_.network_devices};
    for (uint32_t p = 0; p < num_processes; ++p) {
      exchange.processes.push_back(
          {static_cast<int>(p * options_.local_ranks),
           static_cast<int>((p + 1) * options_.local_ranks)});
    }
    ASSIGN_OR_RETURN(ucx_exchange_, UcxExpertExchange::Create(exchange));
    ASSIGN_OR_RETURN(
        ucx_channel_,
        UcxGroupChannel::Create(options_.network_devices, num_processes));
    address.exchange_address = ucx_exchange_->address();
    address.channel_address = ucx_channel_->address();
  }
  address_ = Encode(address);
  return absl::OkStatus();
}

absl::Status GroupTransport::Connect(const GroupEpoch& group) {
  CHECK_EQ(group.members.size(), options_.num_processes());
  if (group.members.size() == 1) {
    channel_ = std::make_unique<LocalGroupChannel>();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const Address leader, Decode(group.members.front()));
  if (options_.mode != UcxMode::kTcp && !leader.exchange_path.empty() &&
      ShareAHost(group)) {
    ucx_exchange_.reset();
    ucx_channel_.reset();
    return ConnectShared(leader.exchange_path, leader.channel_path);
  }
  if (options_.mode == UcxMode::kShm) {
    return FieldError("transport",
                      "is shm, but the group's processes share no memory");
  }
  shared_exchange_.reset();
  shared_memory_.reset();
  return ConnectUcx(group);
}

absl::Status GroupTransport::ConnectShared(const std::string& exchange_path,
                                           const std::string& channel_path) {
  if (options_.process != 0) {
    ASSIGN_OR_RETURN(shared_exchange_,
                     SharedExpertExchange::Open({.shape = options_.shape,
                                                 .deadline = options_.deadline},
                                                exchange_path));
    ASSIGN_OR_RETURN(
        shared_memory_,
        SharedGroupMemory::Open(options_.num_processes(), channel_path));
  }
  channel_ = std::make_unique<SharedGroupChannel>(
      std::move(shared_memory_), options_.process, options_.num_processes());
  return absl::OkStatus();
}

absl::Status GroupTransport::ConnectUcx(const GroupEpoch& group) {
  std::vector<std::string> exchanges;
  std::vector<std::string> channels;
  for (const GroupMember& member : group.members) {
    ASSIGN_OR_RETURN(Address address, Decode(member));
    exchanges.push_back(std::move(address.exchange_address));
    channels.push_back(std::move(address.channel_address));
  }
  RETURN_IF_ERROR(ucx_exchange_->Connect(group.epoch, exchanges));
  RETURN_IF_ERROR(
      ucx_channel_->Connect(group.epoch, options_.process, channels));
  channel_ = std::move(ucx_channel_);
  return absl::OkStatus();
}

std::unique_ptr<ExpertDispatch> GroupTransport::MakeDispatch(uint32_t rank) {
  const int number = static_cast<int>(rank);
  return shared_exchange_ == nullptr ? ucx_exchange_->MakeDispatch(number)
                                     : shared_exchange_->MakeDispatch(number);
}

const char* GroupTransport::way() const {
  if (shared_exchange_ == nullptr) return "ucx";
  return options_.num_processes() == 1 ? "local" : "shm";
}

void GroupTransport::End() {
  if (shared_exchange_ != nullptr) shared_exchange_->End();
  if (ucx_exchange_ != nullptr) ucx_exchange_->End();
  if (channel_ != nullptr) channel_->End();
}

absl::Status GroupTransport::status() const {
  RETURN_IF_ERROR(shared_exchange_ == nullptr ? ucx_exchange_->status()
                                              : shared_exchange_->status());
  return channel_->status();
}

std::vector<uint32_t> GroupTransport::lost_ranks() const {
  return shared_exchange_ == nullptr ? ucx_exchange_->lost_ranks()
                                     : shared_exchange_->lost_ranks();
}

}  // namespace baton
