#include "server/text/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace baton {
namespace {

// Up to here scanning all pairs for each merge is faster than keeping queues.
constexpr size_t kMaxShortPiece = 32;

using MinHeap = std::priority_queue<uint32_t, std::vector<uint32_t>,
                                    std::greater<uint32_t>>;

// The positions of the pairs of one rank, smallest first. Nearly all arrive
// before the first is taken, so they are sorted once; the rest wait in a heap.
class Positions final {
 public:
  bool empty() const { return next_ == sorted_.size() && late_.empty(); }

  void Push(uint32_t position) {
    if (!taking_ || position > sorted_.back()) {
      sorted_.push_back(position);
    } else {
      late_.push(position);
    }
  }

  // REQUIRES: not empty.
  uint32_t Pop() {
    if (!taking_) {
      taking_ = true;
      if (!std::is_sorted(sorted_.begin(), sorted_.end())) {
        std::sort(sorted_.begin(), sorted_.end());
      }
    }
    const bool take_late = !late_.empty() && (next_ == sorted_.size() ||
                                              late_.top() < sorted_[next_]);
    if (!take_late) return sorted_[next_++];
    const uint32_t position = late_.top();
    late_.pop();
    return position;
  }

 private:
  std::vector<uint32_t> sorted_;
  size_t next_ = 0;
  bool taking_ = false;
  MinHeap late_;
};

}  // namespace

// A piece too long for scans: a linked list of symbols, and the pairs that have
// a rule in one queue for each rank. A symbol is named by the position of its
// first byte.
class Bpe::LongPiece final {
 public:
  LongPiece(const Bpe& bpe, std::string_view piece)
      : bpe_(bpe), num_bytes_(piece.size()), symbols_(piece.size()) {
    for (uint32_t i = 0; i < num_bytes_; ++i) {
      symbols_[i].id = bpe.byte_ids_[static_cast<uint8_t>(piece[i])];
      symbols_[i].previous = i - 1;  // Of the first: never read.
      symbols_[i].next = i + 1;
    }
    for (uint32_t i = 0; i < num_bytes_; ++i) LookUp(i);
  }

  // Returns the number of rules looked up.
  size_t MergeAll() {
    while (!live_ranks_.empty()) {
      const uint32_t rank = live_ranks_.top();
      const auto queue = queues_.find(rank);
      const uint32_t position = queue->second.Pop();
      if (queue->second.empty()) {
        queues_.erase(queue);
        live_ranks_.pop();
      }
      // Else the pair has changed since it was queued.
      if (symbols_[position].rank == rank) Merge(position);
    }
    return num_lookups_;
  }

  void AppendIds(std::vector<uint32_t>* ids) const {
    for (uint32_t i = 0; i < num_bytes_; i = symbols_[i].next) {
      ids->push_back(symbols_[i].id);
    }
  }

 private:
  struct Symbol {
    uint32_t id;
    uint32_t previous;
    uint32_t next;            // num_bytes_: none.
    uint32_t rank = kNoRank;  // Of this symbol and the next.
  };

  // Finds the rule of `position` and its next, and queues the pair.
  void LookUp(uint32_t position) {
    Symbol& symbol = symbols_[position];
    symbol.rank = kNoRank;
    if (symbol.next == num_bytes_) return;
    ++num_lookups_;
    symbol.rank = bpe_.Rank(symbol.id, symbols_[symbol.next].id);
    if (symbol.rank == kNoRank) return;
    const auto [queue, is_new] = queues_.try_emplace(symbol.rank);
    if (is_new) live_ranks_.push(symbol.rank);
    queue->second.Push(position);
  }

  void Merge(uint32_t position) {
    Symbol& left = symbols_[position];
    Symbol& right = symbols_[left.next];
    left.id = bpe_.merged_[left.rank];
    left.next = right.next;
    right.rank = kNoRank;
    if (left.next != num_bytes_) symbols_[left.next].previous = position;
    if (position != 0) LookUp(left.previous);
    LookUp(position);
  }

  const Bpe& bpe_;
  const uint32_t num_bytes_;
  std::vector<Symbol> symbols_;
  absl::flat_hash_map<uint32_t, Positions> queues_;  // By rank; none is empty.
  MinHeap live_ranks_;                               // The keys of queues_.
  size_t num_lookups_ = 0;
};

Bpe::Bpe(const std::array<uint32_t, 256>& byte_ids) : byte_ids_(byte_ids) {}

void Bpe::AddMerge(uint32_t left, uint32_t right, uint32_t merged) {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | right;
  ranks_[pair] = static_cast<uint32_t>(merged_.size());
  merged_.push_back(merged);
}

void Bpe::AddWholePiece(std::string_view bytes, uint32_t id) {
  whole_pieces_.insert_or_assign(std::string(bytes), id);
}

uint32_t Bpe::Rank(uint32_t left, uint32_t right) const {
  const auto found = ranks_.find(static_cast<uint64_t>(left) << 32 | right);
  return found == ranks_.end() ? kNoRank : found->second;
}

size_t Bpe::Encode(std::string_view piece, std::vector<uint32_t>* ids) const {
  if (!whole_pieces_.empty()) {
    const auto whole =
        whole_pieces_.find(absl::string_view(piece.data(), piece.size()));
    if (whole != whole_pieces_.end()) {
      ids->push_back(whole->second);
      return 0;
    }
  }
  if (piece.size() <= kMaxShortPiece) return EncodeShort(piece, ids);
  LongPiece symbols(*this, piece);
  const size_t num_lookups = symbols.MergeAll();
  symbols.AppendIds(ids);
  return num_lookups;
}

size_t Bpe::EncodeShort(std::string_view piece,
                        std::vector<uint32_t>* ids) const {
  std::array<uint32_t, kMaxShortPiece> symbols;
  // ranks[i] is of symbols i and i + 1.
  std::array<uint32_t, kMaxShortPiece> ranks;
  size_t size = piece.size();
  size_t num_lookups = 0;
  const auto look_up = [&](size_t i) {
    ranks[i] = Rank(symbols[i], symbols[i + 1]);
    ++num_lookups;
  };
  for (size_t i = 0; i < size; ++i) {
    symbols[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
    if (i > 0) look_up(i - 1);
  }
  while (size > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.begin() + size - 1);
    if (*best == kNoRank) break;
    const size_t i = best - ranks.begin();
    symbols[i] = merged_[*best];
    std::copy(symbols.begin() + i + 2, symbols.begin() + size,
              symbols.begin() + i + 1);
    std::copy(ranks.begin() + i + 1, ranks.begin() + size - 1,
              ranks.begin() + i);
    --size;
    if (i > 0) look_up(i - 1);
    if (i + 1 < size) look_up(i);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.begin() + size);
  return num_lookups;
}

}  // namespace baton
