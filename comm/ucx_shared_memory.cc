#include "comm/ucx_shared_memory.h"

#include <sys/mman.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "comm/sealed_bytes.h"
#include "comm/ucx_status.h"
#include "comm/wire.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14.
#endif

namespace baton {
namespace {

// Refuses what cannot fit before any of it is taken. Another process may take
// the rest meanwhile; see PopulateZeroed().
absl::Status CheckSharedMemoryIsFree(size_t bytes) {
  struct statvfs shm = {};
  if (statvfs("/dev/shm", &shm) != 0) {
    return absl::FailedPreconditionError("/dev/shm is not mounted");
  }
  const uint64_t free = uint64_t{shm.f_bavail} * shm.f_frsize;
  if (bytes <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      bytes, " bytes of shared memory: /dev/shm has ", free, " free"));
}

}  // namespace

absl::Status PopulateZeroed(void* memory, size_t bytes) {
  if (madvise(memory, bytes, MADV_POPULATE_WRITE) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  if (error != EINVAL) {
    return absl::ResourceExhaustedError(
        absl::StrCat(bytes, " bytes of shared memory: ", std::strerror(error)));
  }
  std::memset(memory, 0, bytes);  // The kernel is older.
  return absl::OkStatus();
}

UcxMapping::~UcxMapping() {
  if (key_ != nullptr) ucp_rkey_destroy(key_);
}

absl::StatusOr<std::unique_ptr<UcxSharedMemory>> UcxSharedMemory::Create() {
  ASSIGN_OR_RETURN(
      auto context,
      UcxContext::Create(UCP_FEATURE_RMA,
                         {{"TLS", "posix"}, {"ALLOC_PRIO", "md:posix"}}));
  ASSIGN_OR_RETURN(auto worker, UcxWorker::Create(*context));
  ASSIGN_OR_RETURN(std::string address, worker->Address());
  return std::unique_ptr<UcxSharedMemory>(new UcxSharedMemory(
      std::move(context), std::move(worker), std::move(address)));
}

UcxSharedMemory::~UcxSharedMemory() {
  if (memory_ != nullptr) ucp_mem_unmap(context_->get(), memory_);
}

absl::StatusOr<std::byte*> UcxSharedMemory::Allocate(size_t bytes) {
  CHECK(memory_ == nullptr);
  RETURN_IF_ERROR(CheckSharedMemoryIsFree(bytes));
  ucp_mem_map_params_t params = {};
  params.field_mask =
      UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  RETURN_IF_ERROR(
      UcxStatus(ucp_mem_map(context_->get(), &params, &memory_),
                absl::StrCat("ucp_mem_map of ", bytes, " bytes in /dev/shm")));
  ucp_mem_attr_t attributes = {};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  RETURN_IF_ERROR(
      UcxStatus(ucp_mem_query(memory_, &attributes), "ucp_mem_query"));
  RETURN_IF_ERROR(PopulateZeroed(attributes.address, bytes));

  void* packed = nullptr;
  size_t length = 0;
  RETURN_IF_ERROR(
      UcxStatus(ucp_rkey_pack(context_->get(), memory_, &packed, &length),
                "ucp_rkey_pack"));
  //   key := sealed(base:u64 size:u64 rkey)
  WireWriter key;
  key.Int(reinterpret_cast<uint64_t>(attributes.address)).Int(uint64_t{bytes});
  key_ = SealBytes(key.Take().append(static_cast<const char*>(packed), length));
  ucp_rkey_buffer_release(packed);
  return static_cast<std::byte*>(attributes.address);
}

absl::StatusOr<std::unique_ptr<UcxMapping>> UcxSharedMemory::Map(
    std::string_view worker_address, std::string_view key) const {
  WireReader in(UnsealBytes(key).value_or(""));
  const uint64_t base = in.Int<uint64_t>();
  const uint64_t bytes = in.Int<uint64_t>();
  const std::string rkey(in.rest());
  if (rkey.empty()) return absl::InvalidArgumentError("remote_key: damaged");
  ASSIGN_OR_RETURN(auto worker, UcxWorker::Create(*context_));
  std::unique_ptr<UcxMapping> mapping(new UcxMapping(std::move(worker)));
  mapping->base_ = base;
  mapping->bytes_ = bytes;

  // Without peer error mode, which shared memory does not have; the endpoint
  // only gives meaning to the key.
  const std::string address(worker_address);
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  ucp_ep_h endpoint = nullptr;
  RETURN_IF_ERROR(
      UcxStatus(ucp_ep_create(mapping->worker_->get(), &params, &endpoint),
                "ucp_ep_create for shared memory"));
  RETURN_IF_ERROR(
      UcxStatus(ucp_ep_rkey_unpack(endpoint, rkey.data(), &mapping->key_),
                "ucp_ep_rkey_unpack"));
  void* mapped = nullptr;
  RETURN_IF_ERROR(
      UcxStatus(ucp_rkey_ptr(mapping->key_, base, &mapped), "ucp_rkey_ptr"));
  mapping->address_ = static_cast<const std::byte*>(mapped);
  return mapping;
}

}  // namespace baton
