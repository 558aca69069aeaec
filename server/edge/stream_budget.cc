#include "server/edge/stream_budget.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace baton {
namespace {

constexpr absl::Duration kShortestTick = absl::Milliseconds(1);

absl::Status TimeoutError(absl::Duration timeout) {
  return absl::AbortedError(absl::StrCat(kSlowReaderReason,
                                         ": the client took no message for ",
                                         absl::FormatDuration(timeout)));
}

absl::Status MemoryError() {
  return absl::AbortedError(absl::StrCat(
      kSlowReaderReason, ": too many bytes wait for clients that do not read"));
}

}  // namespace

bool IsSlowReaderCut(const absl::Status& status) {
  return absl::IsAborted(status) &&
         absl::StartsWith(status.message(), kSlowReaderReason);
}

StreamBudget::Account::Account(StreamBudget* budget, CutFunction cut)
    : budget_(budget), cut_(std::move(cut)) {
  absl::MutexLock lock(&budget_->mutex_);
  number_ = ++budget_->num_begun_;
  budget_->accounts_.emplace(number_, this);
}

StreamBudget::Account::~Account() {
  SetBytes(0);
  SetPaused(false);
  absl::MutexLock lock(&budget_->mutex_);
  budget_->accounts_.erase(number_);
}

void StreamBudget::Account::SetBytes(size_t bytes) {
  // Modulo 2^64 a difference below zero is one, too.
  budget_->bytes_ += bytes - bytes_.exchange(bytes);
}

void StreamBudget::Account::SetWriting(bool writing) {
  writing_since_.store(writing ? budget_->tick_.load() : kNotWriting);
}

void StreamBudget::Account::SetPaused(bool paused) {
  if (paused_.exchange(paused) == paused) return;
  budget_->paused_ += paused ? 1 : uint64_t{0} - 1;
  budget_->pauses_ += paused ? 1 : 0;
}

StreamBudget::~StreamBudget() {
  absl::MutexLock lock(&mutex_);
  CHECK(accounts_.empty());
}

absl::Duration StreamBudget::tick_period() const {
  return std::max(limits_.slow_reader_timeout / kTicksToCut, kShortestTick);
}

void StreamBudget::Tick() {
  const int64_t now = ++tick_;
  std::vector<CutFunction> cuts;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [number, account] : accounts_) {
      const int64_t since = account->writing_since_.load();
      if (since == Account::kNotWriting || now - since <= kTicksToCut) continue;
      if (account->is_cut_.exchange(true)) continue;
      cuts.push_back(account->cut_);
    }
  }
  cut_by_timeout_ += cuts.size();
  for (const CutFunction& cut : cuts) {
    cut(TimeoutError(limits_.slow_reader_timeout));
  }
}

void StreamBudget::Settle() {
  if (bytes_.load() <= limits_.max_bytes) return;
  std::vector<CutFunction> cuts;
  {
    absl::MutexLock lock(&mutex_);
    // These will be gone in a moment.
    size_t leaving = BytesOfCut();
    while (bytes_.load() > limits_.max_bytes + leaving) {
      Account* const stuck = FindStuck();
      if (stuck == nullptr) break;
      stuck->is_cut_.store(true);
      leaving += stuck->bytes_.load();
      cuts.push_back(stuck->cut_);
    }
  }
  cut_by_memory_ += cuts.size();
  for (const CutFunction& cut : cuts) cut(MemoryError());
}

size_t StreamBudget::BytesOfCut() const {
  size_t bytes = 0;
  for (const auto& [number, account] : accounts_) {
    if (account->is_cut_.load()) bytes += account->bytes_.load();
  }
  return bytes;
}

StreamBudget::Account* StreamBudget::FindStuck() const {
  Account* stuck = nullptr;
  std::pair<int64_t, size_t> longest;
  const int64_t now = tick_.load();
  for (const auto& [number, account] : accounts_) {
    const int64_t since = account->writing_since_.load();
    if (since == Account::kNotWriting || account->is_cut_.load()) continue;
    const std::pair<int64_t, size_t> stands = {now - since,
                                               account->bytes_.load()};
    if (stuck != nullptr && stands <= longest) continue;
    stuck = account;
    longest = stands;
  }
  return stuck;
}

StreamCounts StreamBudget::counts() const {
  return {.bytes = bytes_.load(),
          .paused = paused_.load(),
          .pauses = pauses_.load(),
          .cut_by_timeout = cut_by_timeout_.load(),
          .cut_by_memory = cut_by_memory_.load()};
}

}  // namespace baton
