// Little-endian encoding of what crosses processes. The reader never trusts a
// length: it hands out views into the bytes it was given, or fails.
#ifndef BATON_COMM_WIRE_H_
#define BATON_COMM_WIRE_H_

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace baton {

static_assert(std::endian::native == std::endian::little);

// Thread-compatible.
class WireWriter {
 public:
  template <typename T>
  WireWriter& Int(T value) {
    static_assert(std::is_unsigned_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  // bytes := length:u32 octet{length}
  WireWriter& Bytes(std::string_view bytes) {
    Int(static_cast<uint32_t>(bytes.size()));
    out_.append(bytes);
    return *this;
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// After the first failure everything fails. Thread-compatible; borrows `bytes`.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Int() {
    static_assert(std::is_unsigned_v<T>);
    T value = 0;
    if (!Need(sizeof value)) return 0;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string_view Bytes() {
    const uint32_t length = Int<uint32_t>();
    if (!Need(length)) return {};
    const std::string_view bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return bytes;
  }
  std::string_view rest() const { return rest_; }
  // All reads succeeded and nothing is left.
  bool done() const { return ok_ && rest_.empty(); }

 private:
  bool Need(size_t size) {
    ok_ = ok_ && size <= rest_.size();
    return ok_;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace baton

#endif  // BATON_COMM_WIRE_H_
