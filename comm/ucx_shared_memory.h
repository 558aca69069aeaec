// A region that processes of this host can map, and mappings of theirs. Nothing
// is ever sent here, so a dead peer can hold nothing up.
#ifndef BATON_COMM_UCX_SHARED_MEMORY_H_
#define BATON_COMM_UCX_SHARED_MEMORY_H_

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/ucx_context.h"

namespace baton {

// Backs every page of a new shared mapping. RESOURCE_EXHAUSTED: there is not as
// much, which would be a bus error at the first use. REQUIRES: page-aligned,
// nothing written to it.
absl::Status PopulateZeroed(void* memory, size_t bytes);

// Another process' region in our address space, as long as this lives; also
// after that process died. It has a UCX worker of its own, which goes with it.
class UcxMapping {
 public:
  ~UcxMapping();
  UcxMapping(const UcxMapping&) = delete;
  UcxMapping& operator=(const UcxMapping&) = delete;

  const std::byte* address() const { return address_; }
  // The region is at `base` in its owner and has at least this size.
  bool Covers(uint64_t base, size_t bytes) const {
    return base == base_ && bytes <= bytes_;
  }

 private:
  friend class UcxSharedMemory;
  explicit UcxMapping(std::unique_ptr<UcxWorker> worker)
      : worker_(std::move(worker)) {}

  const std::unique_ptr<UcxWorker> worker_;
  ucp_rkey_h key_ = nullptr;
  const std::byte* address_ = nullptr;
  uint64_t base_ = 0;  // In its owner.
  size_t bytes_ = 0;
};

// Owned by one thread at a time; outlives its mappings.
class UcxSharedMemory {
 public:
  static absl::StatusOr<std::unique_ptr<UcxSharedMemory>> Create();
  ~UcxSharedMemory();
  UcxSharedMemory(const UcxSharedMemory&) = delete;
  UcxSharedMemory& operator=(const UcxSharedMemory&) = delete;

  // Zeroed, every page backed. RESOURCE_EXHAUSTED: /dev/shm has not as much.
  // REQUIRES: called once.
  absl::StatusOr<std::byte*> Allocate(size_t bytes);
  // What peers need to map the region; sealed. Empty before Allocate().
  const std::string& worker_address() const { return worker_address_; }
  const std::string& key() const { return key_; }

  // INVALID_ARGUMENT: not such a key. Other errors: not possible with this
  // peer. REQUIRES: both come from a live process of this host.
  absl::StatusOr<std::unique_ptr<UcxMapping>> Map(
      std::string_view worker_address, std::string_view key) const;

 private:
  UcxSharedMemory(std::unique_ptr<UcxContext> context,
                  std::unique_ptr<UcxWorker> worker, std::string address)
      : context_(std::move(context)),
        worker_(std::move(worker)),
        worker_address_(std::move(address)) {}

  const std::unique_ptr<UcxContext> context_;
  const std::unique_ptr<UcxWorker> worker_;
  const std::string worker_address_;
  ucp_mem_h memory_ = nullptr;
  std::string key_;
};

}  // namespace baton

#endif  // BATON_COMM_UCX_SHARED_MEMORY_H_
