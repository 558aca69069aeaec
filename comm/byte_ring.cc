#include "comm/byte_ring.h"

#include <algorithm>
#include <cstring>

namespace baton {

std::optional<size_t> ByteRingWriter::Write(std::string_view data) {
  const std::optional<size_t> first = WriteWhatFits(data);
  if (!first.has_value() || *first == data.size()) return first;
  // Said before the second look, so that no room is missed: the reader takes
  // note of it after each of its reads.
  state_->writer_waits.store(1);
  const std::optional<size_t> second = WriteWhatFits(data.substr(*first));
  if (!second.has_value()) return std::nullopt;
  return *first + *second;
}

std::optional<size_t> ByteRingWriter::WriteWhatFits(std::string_view data) {
  const uint64_t used = written_ - state_->read.load();
  if (used > bytes_.size()) return std::nullopt;
  const size_t size = std::min(data.size(), bytes_.size() - used);
  if (size == 0) return 0;
  const size_t at = written_ % bytes_.size();
  const size_t to_end = std::min(size, bytes_.size() - at);
  std::memcpy(&bytes_[at], data.data(), to_end);
  std::memcpy(bytes_.data(), data.data() + to_end, size - to_end);
  written_ += size;
  state_->written.store(written_, std::memory_order_release);
  return size;
}

bool ByteRingReader::ReadTo(std::string* out) {
  const uint64_t size = state_->written.load() - read_;
  if (size > bytes_.size()) return false;
  if (size == 0) return true;
  const size_t at = read_ % bytes_.size();
  const size_t to_end = std::min<size_t>(size, bytes_.size() - at);
  const char* const bytes = reinterpret_cast<const char*>(bytes_.data());
  out->append(bytes + at, to_end);
  out->append(bytes, size - to_end);
  read_ += size;
  state_->read.store(read_);
  return true;
}

bool ByteRingReader::TakeWriterWaits() {
  return state_->writer_waits.load() != 0 &&
         state_->writer_waits.exchange(0) != 0;
}

}  // namespace baton
