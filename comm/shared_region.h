// A region that processes of this host can map to read, and mappings of theirs.
// No file has a name: whatever kills a process, nothing of it stays behind.
#ifndef BATON_COMM_SHARED_REGION_H_
#define BATON_COMM_SHARED_REGION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// Backs every page of a new shared mapping. RESOURCE_EXHAUSTED: there is not as
// much, which would be a bus error at the first use. REQUIRES: page-aligned,
// nothing written to it.
absl::Status PopulateZeroed(void* memory, size_t bytes);

// Thread-compatible.
class SharedRegion final {
 public:
  // Zeroed, every page backed. RESOURCE_EXHAUSTED: there is not as much.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Create(size_t bytes);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  std::byte* data() const { return data_; }
  // What others need to map it; sealed.
  const std::string& key() const { return key_; }

 private:
  SharedRegion(int fd, std::byte* data, size_t bytes, std::string key);

  const int fd_;
  std::byte* const data_;
  const size_t bytes_;
  const std::string key_;
};

// Another process' region in our address space, read-only, as long as this
// lives; also after that process died. Thread-compatible.
class SharedRegionView final {
 public:
  // `key`: of a live process of this host. INVALID_ARGUMENT: it is no key.
  // Other errors: that region is no more, or not for this process.
  static absl::StatusOr<std::unique_ptr<SharedRegionView>> Map(
      std::string_view key);
  ~SharedRegionView();
  SharedRegionView(const SharedRegionView&) = delete;
  SharedRegionView& operator=(const SharedRegionView&) = delete;

  const std::byte* address() const { return address_; }
  // The region is at `base` in its owner and has this size.
  bool Is(uint64_t base, size_t bytes) const {
    return base == base_ && bytes == bytes_;
  }

 private:
  SharedRegionView(const std::byte* address, uint64_t base, size_t bytes)
      : address_(address), base_(base), bytes_(bytes) {}

  const std::byte* const address_;
  const uint64_t base_;  // In its owner.
  const size_t bytes_;
};

}  // namespace baton

#endif  // BATON_COMM_SHARED_REGION_H_
