// Integer ids that do not mix: a RequestId is never compared with a BlockId.
//
//   BATON_DEFINE_STRONG_INT(BlockId, uint32_t);
#ifndef BATON_BASE_STRONG_INT_H_
#define BATON_BASE_STRONG_INT_H_

#include <compare>
#include <ostream>
#include <utility>

namespace baton {

// A value of `T` that only compares, hashes, prints and counts upwards.
// Thread-compatible.
template <typename Tag, typename T>
class StrongInt {
 public:
  using ValueType = T;

  constexpr StrongInt() = default;
  constexpr explicit StrongInt(T value) : value_(value) {}

  constexpr T value() const { return value_; }
  constexpr StrongInt& operator++() {
    ++value_;
    return *this;
  }
  friend constexpr auto operator<=>(StrongInt, StrongInt) = default;

  template <typename H>
  friend H AbslHashValue(H h, StrongInt id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& out, StrongInt id) {
    return out << +id.value_;
  }

 private:
  T value_ = 0;
};

}  // namespace baton

#define BATON_DEFINE_STRONG_INT(Name, T) \
  using Name = ::baton::StrongInt<struct Name##Tag, T>

#endif  // BATON_BASE_STRONG_INT_H_
