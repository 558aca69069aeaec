#include "engine/model/testing/model_driver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/cache_spec.h"

namespace baton {
namespace {

constexpr size_t kPageBytes = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<ModelDriver>> ModelDriver::Create(
    const DriverOptions& options) {
  auto threads = std::make_unique<ThreadPool>(
      ThreadPoolOptions{.num_threads = options.num_threads});
  ASSIGN_OR_RETURN(
      std::unique_ptr<DeepSeekV3Runner> runner,
      DeepSeekV3Runner::Load(options.load, {options.isa, threads.get()}));
  return std::unique_ptr<ModelDriver>(
      new ModelDriver(options, std::move(runner), std::move(threads)));
}

ModelDriver::ModelDriver(const DriverOptions& options,
                         std::unique_ptr<DeepSeekV3Runner> runner,
                         std::unique_ptr<ThreadPool> threads)
    : options_(options),
      threads_(std::move(threads)),
      runner_(std::move(runner)) {
  const size_t block_bytes = runner_->info().cache.block_bytes();
  const size_t bytes = KvPool::RegionBytes(options_.num_blocks, block_bytes);
  memory_.resize((bytes + kPageBytes) / sizeof(uint64_t));
  const size_t misaligned =
      reinterpret_cast<uintptr_t>(memory_.data()) % kPageBytes;
  std::byte* region = reinterpret_cast<std::byte*>(memory_.data()) +
                      (kPageBytes - misaligned) % kPageBytes;
  pool_ = std::make_unique<KvPool>(region, options_.num_blocks, block_bytes);
  // All ones is NaN in float32 and in bf16: a read of a stale row shows.
  std::memset(pool_->blocks(), 0xff, options_.num_blocks * block_bytes);
  runner_->BindKvPool(pool_.get());
  expert_rows_.resize(size_t{info().num_expert_layers} * info().num_experts);
  Reset();
}

void ModelDriver::Reset() {
  sequences_.clear();
  free_blocks_.clear();
  // Odd ids, then even ones: neighbours in a sequence are none in memory.
  for (const uint32_t parity : {1u, 0u}) {
    for (uint32_t id = parity; id < options_.num_blocks; id += 2) {
      free_blocks_.push_back(id);
    }
  }
}

int ModelDriver::NewSequence(int prompt_tokens) {
  sequences_.emplace_back().prompt_tokens = prompt_tokens;
  return static_cast<int>(sequences_.size()) - 1;
}

void ModelDriver::Place(const Piece& piece, int first_slot, Batch* batch) {
  Sequence& sequence = sequences_[piece.sequence];
  const size_t num_rows = piece.token_ids.size();
  const uint32_t blocks = CacheSpec::BlocksFor(first_slot + num_rows);
  while (sequence.block_table.size() < blocks) {
    CHECK(!free_blocks_.empty()) << "the test needs more blocks";
    sequence.block_table.push_back(free_blocks_.back());
    free_blocks_.pop_back();
  }
  batch->sequences.push_back({static_cast<int32_t>(batch->token_ids.size()),
                              static_cast<int32_t>(num_rows),
                              sequence.block_table.data(),
                              sequence.prompt_tokens});
  for (const uint32_t token : piece.token_ids) {
    batch->token_ids.push_back(token);
    batch->positions.push_back(first_slot++);
  }
}

ModelDriver::Batch ModelDriver::Append(std::span<const Piece> pieces) {
  Batch batch;
  for (const Piece& piece : pieces) {
    int& num_tokens = sequences_[piece.sequence].num_tokens;
    Place(piece, num_tokens, &batch);
    num_tokens += static_cast<int>(piece.token_ids.size());
  }
  return batch;
}

ModelDriver::Output ModelDriver::Run(
    const Batch& batch, std::span<const int32_t> logits_rows, bool wants_hidden,
    std::optional<std::span<const float>> hidden) {
  const auto vocab = static_cast<int>(info().vocab_size);
  const auto hidden_size = static_cast<int>(info().hidden_size);
  const auto num_rows = static_cast<int>(batch.token_ids.size());
  Logits all(logits_rows.size() * vocab);
  Output result;
  ForwardOutput output = {
      .logits = Dense(all.data(), static_cast<int>(logits_rows.size()), vocab),
      .expert_rows = expert_rows_};
  if (wants_hidden) {
    result.hidden.resize(batch.token_ids.size() * hidden_size);
    output.hidden = Dense(result.hidden.data(), num_rows, hidden_size);
  }
  const ForwardBatch view = {batch.token_ids, batch.positions, batch.sequences,
                             logits_rows};
  if (hidden.has_value()) {
    CHECK_EQ(hidden->size(), batch.token_ids.size() * hidden_size);
    runner_->Draft(view, Dense(hidden->data(), num_rows, hidden_size), output);
  } else {
    runner_->Forward(view, output);
  }
  for (size_t i = 0; i < logits_rows.size(); ++i) {
    result.logits.emplace_back(all.begin() + i * vocab,
                               all.begin() + (i + 1) * vocab);
  }
  return result;
}

std::vector<ModelDriver::Logits> ModelDriver::Step(
    std::span<const Piece> pieces) {
  std::vector<int32_t> rows;
  for (const Piece& piece : pieces) {
    for (size_t i = 0; i < piece.token_ids.size(); ++i) {
      rows.push_back(static_cast<int32_t>(rows.size()));
    }
  }
  return Step(pieces, rows);
}

std::vector<ModelDriver::Logits> ModelDriver::Step(
    std::span<const Piece> pieces, std::span<const int32_t> logits_rows) {
  return Run(Append(pieces), logits_rows, false, {}).logits;
}

ModelDriver::Output ModelDriver::StepWithHidden(
    std::span<const Piece> pieces, std::span<const int32_t> logits_rows) {
  return Run(Append(pieces), logits_rows, true, {});
}

ModelDriver::Output ModelDriver::Draft(std::span<const Piece> pieces,
                                       std::span<const float> hidden,
                                       std::span<const int32_t> logits_rows) {
  Batch batch;
  for (const Piece& piece : pieces) Place(piece, piece.first_slot, &batch);
  return Run(batch, logits_rows, true, hidden);
}

std::vector<ModelDriver::Logits> ModelDriver::DraftLogits(
    std::span<const Piece> pieces, std::span<const float> hidden,
    std::span<const int32_t> logits_rows) {
  Batch batch;
  for (const Piece& piece : pieces) Place(piece, piece.first_slot, &batch);
  return Run(batch, logits_rows, false, hidden).logits;
}

std::vector<ModelDriver::Logits> ModelDriver::Prefill(
    int sequence, std::span<const uint32_t> token_ids, int chunk) {
  std::vector<Logits> logits;
  for (size_t first = 0; first < token_ids.size(); first += chunk) {
    const Piece piece = {
        sequence,
        token_ids.subspan(first,
                          std::min<size_t>(chunk, token_ids.size() - first))};
    for (Logits& row : Step(std::span(&piece, 1))) {
      logits.push_back(std::move(row));
    }
  }
  return logits;
}

uint32_t Argmax(std::span<const float> logits) {
  return static_cast<uint32_t>(std::ranges::max_element(logits) -
                               logits.begin());
}

}  // namespace baton
