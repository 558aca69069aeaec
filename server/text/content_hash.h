// A stable hash of contents, the same on every machine and in every build.
#ifndef BATON_SERVER_TEXT_CONTENT_HASH_H_
#define BATON_SERVER_TEXT_CONTENT_HASH_H_

#include <string>
#include <string_view>

namespace baton {

// 128-bit FNV-1a. Tells different files apart; no protection against somebody
// who makes two that agree. Thread-compatible.
class ContentHash final {
 public:
  // Adds a part, with its length: parts do not run into each other.
  void Add(std::string_view part);

  // 32 hex digits over the parts so far.
  std::string Hex() const;

 private:
  using Uint128 = unsigned __int128;

  void AddByte(unsigned char byte);

  // FNV's offset basis: 0x6c62272e07bb014262b821756295c58d.
  Uint128 hash_ =
      static_cast<Uint128>(0x6c62272e07bb0142) << 64 | 0x62b821756295c58d;
};

}  // namespace baton

#endif  // BATON_SERVER_TEXT_CONTENT_HASH_H_
