// A ring of bytes from one writer to one reader, threads or processes, in
// memory that both share. Neither trusts what the other has left there.
#ifndef BATON_COMM_BYTE_RING_H_
#define BATON_COMM_BYTE_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace baton {

// Lies in the shared memory; zeroed, the ring is empty.
struct ByteRingState {
  alignas(64) std::atomic<uint64_t> written;  // Bytes so far.
  alignas(64) std::atomic<uint64_t> read;
  std::atomic<uint32_t> writer_waits;  // For room.
};

// Owned by one thread at a time; borrows both.
class ByteRingWriter final {
 public:
  ByteRingWriter(ByteRingState* state, std::span<std::byte> bytes)
      : state_(state), bytes_(bytes) {}

  // How much of it there was room for; if not all, the reader's next
  // TakeWriterWaits() says that there is more. Nullopt: the ring is damaged.
  std::optional<size_t> Write(std::string_view data);

 private:
  std::optional<size_t> WriteWhatFits(std::string_view data);

  ByteRingState* const state_;
  const std::span<std::byte> bytes_;
  uint64_t written_ = 0;
};

// Likewise.
class ByteRingReader final {
 public:
  ByteRingReader(ByteRingState* state, std::span<const std::byte> bytes)
      : state_(state), bytes_(bytes) {}

  bool empty() const { return state_->written.load() == read_; }
  // Appends all that is here. False: the ring is damaged.
  bool ReadTo(std::string* out);
  // Once after the writer found no room.
  bool TakeWriterWaits();

 private:
  ByteRingState* const state_;
  const std::span<const std::byte> bytes_;
  uint64_t read_ = 0;
};

}  // namespace baton

#endif  // BATON_COMM_BYTE_RING_H_
