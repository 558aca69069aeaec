#include "tests/golden/drafted_sequence.h"

#include <numeric>
#include <utility>

#include "base/logging.h"

namespace baton {
namespace {

std::vector<int32_t> FirstRows(size_t count) {
  std::vector<int32_t> rows(count);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

}  // namespace

std::unique_ptr<ModelDriver> DraftedSequence::Load(const std::string& folder) {
  auto driver = ModelDriver::Create({.load = {.folder = folder,
                                              .cache_dtype = CacheDtype::kF32,
                                              .max_rows = kMaxTokens,
                                              .max_logits_rows = kMaxTokens,
                                              .drafter = true},
                                     .isa = SupportedVectorIsas().back()});
  CHECK_OK(driver.status());
  return *std::move(driver);
}

std::vector<ModelDriver::Logits> DraftedSequence::Add(
    std::span<const uint32_t> tokens, std::vector<Logits>* target) {
  const size_t hidden_size = driver_->info().hidden_size;
  std::vector<float> before = std::move(last_hidden_);
  const ModelDriver::Piece piece = {sequence_, tokens};
  ModelDriver::Output forward = driver_->StepWithHidden(
      {&piece, 1}, FirstRows(target == nullptr ? 0 : tokens.size()));
  const std::vector<float>& after = forward.hidden;
  before.insert(before.end(), after.begin(), after.end() - hidden_size);
  last_hidden_.assign(after.end() - hidden_size, after.end());
  if (target != nullptr) *target = std::move(forward.logits);
  const size_t skipped = num_tokens_ == 0 ? 1 : 0;
  ModelDriver::Output drafted =
      DraftRows({sequence_, tokens.subspan(skipped),
                 num_tokens_ + static_cast<int>(skipped)},
                before);
  num_tokens_ += static_cast<int>(tokens.size());
  if (!drafted.hidden.empty()) {
    chain_hidden_.assign(drafted.hidden.end() - hidden_size,
                         drafted.hidden.end());
  }
  return std::move(drafted.logits);
}

ModelDriver::Logits DraftedSequence::Chain(uint32_t draft, int ahead) {
  const ModelDriver::Output drafted = DraftRows(
      {sequence_, {&draft, 1}, num_tokens_ + ahead - 1}, chain_hidden_);
  chain_hidden_ = drafted.hidden;
  return drafted.logits[0];
}

ModelDriver::Output DraftedSequence::DraftRows(const ModelDriver::Piece& piece,
                                               std::span<const float> hidden) {
  return driver_->Draft({&piece, 1}, hidden, FirstRows(piece.token_ids.size()));
}

}  // namespace baton
