// ExpertDispatch between the ranks of one host, threads and processes alike:
// each rank lays its rows out on its board, and whoever holds their experts
// takes them from there.
#ifndef BATON_COMM_SHARED_EXPERT_DISPATCH_H_
#define BATON_COMM_SHARED_EXPERT_DISPATCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/expert_boards.h"
#include "comm/expert_dispatch.h"
#include "comm/group_barrier.h"
#include "comm/shared_memory.h"

namespace baton {

struct ExpertExchangeOptions {
  ExpertGroupShape shape;
  // Of one wait for the other ranks.
  absl::Duration deadline = absl::Seconds(5);
  // Every rank of the group has a core to itself.
  bool spins = false;
  // The ranks that share the memory, [first_rank, end_rank); 0: all of them.
  // The others have boards in it as well, which a bridge fills.
  int first_rank = 0;
  int end_rank = 0;
};

// The memory of one epoch of the group, and its end. One process creates it,
// the others open it. Thread-safe.
class SharedExpertExchange final {
 public:
  static absl::StatusOr<std::unique_ptr<SharedExpertExchange>> Create(
      const ExpertExchangeOptions& options);
  // The path of the one created, in a live process of this host. The options
  // must be its own.
  static absl::StatusOr<std::unique_ptr<SharedExpertExchange>> Open(
      const ExpertExchangeOptions& options, const std::string& path);

  const std::string& path() const { return memory_->path(); }
  // One for each rank that shares the memory, in whichever process. It borrows
  // this.
  std::unique_ptr<ExpertDispatch> MakeDispatch(int rank);

  // Before the first dispatch, where there are other ranks: the last rank to
  // arrive in an exchange calls the bridge, and Release() lets all go on.
  // Exchanges of tokens and of outputs take turns.
  void SetBridge(std::function<void()> bridge) { bridge_ = std::move(bridge); }
  void Release() { barrier_.Release(); }
  // Of each rank of the group.
  std::span<const ExpertBoard> boards() const { return boards_; }

  // Ends every rank's wait, and all exchange: a new epoch makes a new one.
  void End() { barrier_.End(); }
  bool ended() const { return barrier_.ended(); }
  absl::Status status() const { return barrier_.status(); }
  // As GroupBarrier::missing_ranks.
  std::vector<uint32_t> lost_ranks() const { return barrier_.missing_ranks(); }

 private:
  friend class SharedExpertDispatch;
  // All ranks, in their own processes, are in the same exchange. False: ended.
  bool Arrive(int rank);
  SharedExpertExchange(const ExpertExchangeOptions& options,
                       std::unique_ptr<SharedMemory> memory);

  const ExpertExchangeOptions options_;
  const std::unique_ptr<SharedMemory> memory_;
  const std::vector<ExpertBoard> boards_;
  std::function<void()> bridge_;
  GroupBarrier barrier_;
};

// Two barriers a layer. Nothing is double buffered: tokens are read between the
// first and the second, outputs between the second and the next layer's first.
class SharedExpertDispatch final : public ExpertDispatch {
 public:
  // Borrows the exchange.
  SharedExpertDispatch(SharedExpertExchange* exchange, int rank);

  int rank() const override { return rank_; }
  int num_ranks() const override { return shape_.num_ranks; }
  int slots_per_rank() const override { return shape_.slots_per_rank; }
  int max_rows() const override { return shape_.max_rows(); }
  ExpertRows Dispatch(MatrixView<const float> x,
                      MatrixView<const int32_t> experts,
                      const ExpertSlots& slots) override;
  void Combine(MatrixView<float> routed) override;
  absl::Status status() const override { return exchange_->status(); }

 private:
  // Takes the rows of this rank's slots; gives their number.
  int TakeRows();

  SharedExpertExchange* const exchange_;
  const ExpertGroupShape shape_;
  const int rank_;
  const std::span<const ExpertBoard> boards_;  // Of each rank.
  SlotChooser chooser_;

  std::vector<int32_t> offsets_;  // [slots_per_rank + 1]
  // [max_rows, hidden]. Not written before it is used, so that the worst case
  // takes no memory.
  const std::unique_ptr<float[]> inputs_;
};

}  // namespace baton

#endif  // BATON_COMM_SHARED_EXPERT_DISPATCH_H_
