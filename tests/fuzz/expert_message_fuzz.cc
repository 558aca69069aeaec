// Rows of tokens, and outputs, of a process that shares no memory.
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/logging.h"
#include "comm/expert_boards.h"
#include "comm/expert_message.h"
#include "comm/shared_memory.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton {
namespace {

constexpr ExpertGroupShape kShape = {.experts = {.num_experts = 4,
                                                 .top_k = 2,
                                                 .hidden_size = 2,
                                                 .max_tokens = 3},
                                     .num_ranks = 2,
                                     .slots_per_rank = 2};
constexpr RankRange kOwn = {0, 1};
constexpr RankRange kOther = {1, 2};

// One process's boards, made anew for each input: a message may spoil them.
class Side {
 public:
  explicit Side(RankRange local)
      : memory_(*SharedMemory::Create(ExpertBoards::Bytes(kShape))) {
    const ExpertBoards boards(kShape, memory_->data());
    for (int r = 0; r < kShape.num_ranks; ++r) {
      boards_.push_back(boards.board(r));
    }
    messenger_.emplace(kShape, boards_, local);
  }
  const ExpertMessenger& messenger() const { return *messenger_; }

 private:
  std::unique_ptr<SharedMemory> memory_;
  std::vector<ExpertBoard> boards_;
  std::optional<ExpertMessenger> messenger_;
};

}  // namespace

// The first byte: tokens or outputs.
std::vector<std::string> FuzzSeeds() {
  const Side other(kOther);
  // No rows; and one row that two of our slots work on.
  const auto word = [](uint32_t n) {
    return std::string(reinterpret_cast<const char*>(&n), sizeof n);
  };
  return {"t" + other.messenger().WriteTokens(kOwn),
          "t" + word(1) + word(1) + word(1) + word(0) + word(0) +
              std::string(2 * sizeof(float), 'x'),
          "o" + other.messenger().WriteOutputs(kOwn)};
}

void FuzzOne(std::string_view bytes) {
  if (bytes.empty()) return;
  const Side own(kOwn);
  if (bytes.front() == 't') {
    own.messenger().ReadTokens(kOther, bytes.substr(1));
  } else {
    own.messenger().ReadOutputs(kOther, bytes.substr(1));
  }
}

}  // namespace baton
