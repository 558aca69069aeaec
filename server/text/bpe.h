// Byte-pair encoding of one piece of text.
#ifndef BATON_SERVER_TEXT_BPE_H_
#define BATON_SERVER_TEXT_BPE_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace baton {

// Merge rules over token ids. Filled once, then immutable and thread-safe.
//
// A piece starts as one symbol for each byte. While any two neighbours have a
// merge, the pair whose merge has the lowest rank, the leftmost of equal ones,
// becomes one symbol. What is left are the tokens.
class Bpe final {
 public:
  // The ids of the 256 single bytes.
  explicit Bpe(const std::array<uint32_t, 256>& byte_ids);

  // Tokens `left` and `right` become `merged`; ranks rise with each call. A
  // second rule for the same pair replaces the first. REQUIRES: the bytes of
  // `merged` are those of `left` and then `right`, none of them empty.
  void AddMerge(uint32_t left, uint32_t right, uint32_t merged);

  // A piece that equals `bytes` becomes `id` without any merging.
  void AddWholePiece(std::string_view bytes, uint32_t id);

  // Appends the tokens of `piece` to `ids`. Linear in the piece, but for
  // sorting positions within a rank. Returns the number of rules looked up:
  // less than 3 for each byte.
  size_t Encode(std::string_view piece, std::vector<uint32_t>* ids) const;

 private:
  class LongPiece;

  static constexpr uint32_t kNoRank = UINT32_MAX;

  // The rank of the pair's rule, or kNoRank.
  uint32_t Rank(uint32_t left, uint32_t right) const;
  size_t EncodeShort(std::string_view piece, std::vector<uint32_t>* ids) const;

  std::array<uint32_t, 256> byte_ids_;
  // The pair, left id in the upper half, to the rank of its rule.
  absl::flat_hash_map<uint64_t, uint32_t> ranks_;
  std::vector<uint32_t> merged_;  // By rank.
  absl::flat_hash_map<std::string, uint32_t> whole_pieces_;
};

}  // namespace baton

#endif  // BATON_SERVER_TEXT_BPE_H_
