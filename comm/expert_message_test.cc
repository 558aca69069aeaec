#include "comm/expert_message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "comm/shared_memory.h"
#include "comm/slot_choices.h"
#include "comm/testing/random_slot_table.h"

namespace baton {
namespace {

constexpr ExpertGroupShape kShape = {.experts = {.num_experts = 12,
                                                 .top_k = 3,
                                                 .hidden_size = 4,
                                                 .max_tokens = 6},
                                     .num_ranks = 5,
                                     .slots_per_rank = 4};

// One process's boards, and what it says.
class Side {
 public:
  explicit Side(RankRange local)
      : local_(local),
        memory_(*SharedMemory::Create(ExpertBoards::Bytes(kShape))) {
    const ExpertBoards boards(kShape, memory_->data());
    for (int r = 0; r < kShape.num_ranks; ++r) {
      boards_.push_back(boards.board(r));
    }
    messenger_ = std::make_unique<ExpertMessenger>(kShape, boards_, local_);
  }

  // Tokens of the local ranks; x is the rank, the token, then noise.
  void LayOut(const SlotTable& table, std::mt19937* random) {
    SlotChooser chooser(kShape.experts, kShape.num_slots());
    std::vector<int32_t> all(kShape.experts.num_experts);
    std::iota(all.begin(), all.end(), 0);
    for (int rank = local_.first; rank < local_.end; ++rank) {
      const int tokens = static_cast<int>((*random)() % 7);
      std::vector<int32_t> experts;
      for (int t = 0; t < tokens; ++t) {
        std::ranges::shuffle(all, *random);
        experts.insert(experts.end(), all.begin(), all.begin() + 3);
        float* const x = boards_[rank].x.row(t);
        x[0] = static_cast<float>(rank);
        x[1] = static_cast<float>(t);
        x[2] = x[3] = static_cast<float>((*random)() % 100);
      }
      chooser.Choose(Dense<const int32_t>(experts.data(), tokens, 3),
                     table.view(), rank, boards_[rank].choices);
    }
  }

  // Local slots compute: the row they got, and behind it their number.
  void Compute() {
    for (int rank = local_.first; rank < local_.end; ++rank) {
      int row = 0;
      for (int s = 0; s < kShape.slots_per_rank; ++s) {
        ComputeSlot(rank * kShape.slots_per_rank + s, &row);
      }
    }
  }

  // Every choice of every local token has its output.
  bool IsRight() const {
    for (int rank = local_.first; rank < local_.end; ++rank) {
      for (int slot = 0; slot < kShape.num_slots(); ++slot) {
        if (!IsRight(rank, slot)) return false;
      }
    }
    return true;
  }

  const ExpertMessenger& messenger() const { return *messenger_; }
  RankRange local() const { return local_; }

 private:
  void ComputeSlot(int slot, int* row) {
    const MatrixView<float> outputs =
        boards_[slot / kShape.slots_per_rank].outputs;
    for (const ExpertBoard& source : boards_) {
      source.first_rows[slot] = *row;
      const std::span<const int32_t> offsets = source.choices.offsets;
      for (int i = offsets[slot]; i < offsets[slot + 1]; ++i, ++*row) {
        std::copy_n(source.x.row(source.choices.choices[i] / 3), 3,
                    outputs.row(*row));
        outputs.row(*row)[3] = static_cast<float>(slot);
      }
    }
  }

  bool IsRight(int rank, int slot) const {
    const ExpertBoard& board = boards_[rank];
    const std::span<const int32_t> offsets = board.choices.offsets;
    const MatrixView<float> outputs =
        boards_[slot / kShape.slots_per_rank].outputs;
    for (int i = offsets[slot]; i < offsets[slot + 1]; ++i) {
      const float* const x = board.x.row(board.choices.choices[i] / 3);
      const float* const output =
          outputs.row(board.first_rows[slot] + i - offsets[slot]);
      if (!std::equal(x, x + 3, output)) return false;
      if (output[3] != static_cast<float>(slot)) return false;
    }
    return true;
  }

  const RankRange local_;
  const std::unique_ptr<SharedMemory> memory_;
  std::vector<ExpertBoard> boards_;
  std::unique_ptr<ExpertMessenger> messenger_;
};

TEST(ExpertMessageTest, TwoProcessesGetEachOthersRowsAndOutputs) {
  std::mt19937 random(1);
  Side a({0, 2});
  Side b({2, 5});
  for (int layer = 0; layer < 200; ++layer) {
    const SlotTable table = RandomSlotTable(12, 5, 4, &random);
    for (Side* side : {&a, &b}) side->LayOut(table, &random);
    for (auto [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
      ASSERT_TRUE(to->messenger().ReadTokens(
          from->local(), from->messenger().WriteTokens(to->local())));
    }
    for (Side* side : {&a, &b}) side->Compute();
    for (auto [from, to] : {std::pair(&a, &b), std::pair(&b, &a)}) {
      ASSERT_TRUE(to->messenger().ReadOutputs(
          from->local(), from->messenger().WriteOutputs(to->local())));
    }
    for (Side* side : {&a, &b}) ASSERT_TRUE(side->IsRight()) << layer;
  }
}

TEST(ExpertMessageTest, ATokenGoesOnceToAProcessThatHasMoreOfItsExperts) {
  std::mt19937 random(2);
  Side a({0, 1});
  const SlotTable table = RandomSlotTable(12, 5, 4, &random);
  a.LayOut(table, &random);
  const std::string message = a.messenger().WriteTokens({0, 5});
  uint32_t num_rows = 0;
  std::memcpy(&num_rows, message.data(), sizeof num_rows);
  ASSERT_GT(num_rows, 0u);
  EXPECT_EQ(message.size(), 4 + 4 * 20 + num_rows * 3 * 4 + num_rows * 16);
}

TEST(ExpertMessageTest, TakesNoDamagedMessageForOne) {
  std::mt19937 random(3);
  Side a({0, 2});
  Side b({2, 5});
  const SlotTable table = RandomSlotTable(12, 5, 4, &random);
  a.LayOut(table, &random);
  b.LayOut(table, &random);
  const std::string tokens = a.messenger().WriteTokens({2, 5});
  for (size_t size = 0; size < tokens.size(); ++size) {
    EXPECT_FALSE(b.messenger().ReadTokens({0, 2}, tokens.substr(0, size)));
  }
  EXPECT_FALSE(b.messenger().ReadTokens({0, 2}, tokens + "x"));
  // Whatever its bytes say, it stays within the boards.
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = tokens;
    for (int n = 0; n < 3; ++n) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    b.messenger().ReadTokens({0, 2}, damaged);
  }
  ASSERT_TRUE(b.messenger().ReadTokens({0, 2}, tokens));
  b.Compute();
  const std::string outputs = b.messenger().WriteOutputs({0, 2});
  EXPECT_FALSE(
      a.messenger().ReadOutputs({2, 5}, std::string_view(outputs).substr(1)));
  EXPECT_FALSE(a.messenger().ReadOutputs({2, 5}, outputs + "x"));
  EXPECT_TRUE(a.messenger().ReadOutputs({2, 5}, outputs));
}

}  // namespace
}  // namespace baton
