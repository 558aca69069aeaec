// The engine's side of KV transfers.
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "engine/cache_spec.h"
#include "engine/kv_tail.h"
#include "engine/llm_engine.h"

namespace baton {
namespace {

// UNAVAILABLE would blame this process; the other end may be the one at fault.
absl::Status WithoutBlame(const absl::Status& status) {
  return absl::IsUnavailable(status) ? absl::AbortedError(status.message())
                                     : status;
}

absl::StatusOr<KvTailEntry> TakeTail(const KvImportEnded& event,
                                     const ModelRunnerInfo& model,
                                     SequenceMetadata* sequence) {
  RETURN_IF_ERROR(WithoutBlame(event.status));
  ASSIGN_OR_RETURN(KvTail tail, DecodeKvTail(event.tail, model.vocab_size,
                                             model.drafter_hidden_size()));
  for (KvTailEntry& entry : tail.entries) {
    if (entry.sample_index != sequence->request.sample_index) continue;
    sequence->imported_hidden = std::move(tail.hidden);
    return std::move(entry);
  }
  return absl::DataLossError("KV tail: no token for this sample");
}

// Of an import's blocks those that the cache lacked.
uint32_t NumImported(const SequenceMetadata& sequence) {
  return static_cast<uint32_t>(sequence.kv.blocks().size()) -
         sequence.prefix.position.num_blocks;
}

}  // namespace

absl::Status LLMEngine::CheckTransfer(const GenerationRequest& request,
                                      const PrefixChain& prefix) const {
  const bool has_handle = request.kv_handle.has_value();
  if (!has_handle && request.mode != RequestMode::kPrefill) {
    return absl::OkStatus();
  }
  if (!environment_.transfer) {
    return absl::FailedPreconditionError("no KV transfer here");
  }
  if (!has_handle) return absl::OkStatus();
  if (request.mode != RequestMode::kDecode) {
    return FieldError("kv_handle", "is for decoding alone");
  }
  const KvHandle& handle = *request.kv_handle;
  if (handle.fingerprint != model_.fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrCat("KV of fingerprint ", handle.fingerprint,
                     " is of no use to ", model_.fingerprint));
  }
  if (handle.num_tokens != request.token_ids.size() ||
      handle.blocks.size() != CacheSpec::BlocksFor(handle.num_tokens)) {
    return FieldError("kv_handle",
                      absl::StrCat("holds ", handle.num_tokens, " tokens in ",
                                   handle.blocks.size(), " blocks for ",
                                   request.token_ids.size(), " token_ids"));
  }
  if (handle.prefix_key != prefix.KeyOfAll(request.token_ids)) {
    return FieldError("kv_handle", "is of other token_ids, or another salt");
  }
  return absl::OkStatus();
}

void LLMEngine::StartExport(SequenceMetadata* sequence) {
  kv_.Transition(&sequence->kv, KvRangeState::kExported);
  ++num_exporting_;
  KvHandle handle = environment_.transfer.StartExport(
      ExportId(sequence->id.value()), sequence->kv.blocks(),
      sequence->num_tokens());
  handle.prefix_key = sequence->prefix.KeyOfAll(sequence->tokens);
  sequence->sink->OnKvHandle(handle);
  if (sequence->computed_rows > 0) ReportProgress(sequence);
}

void LLMEngine::StartImport(SequenceMetadata* sequence) {
  kv_.Transition(&sequence->kv, KvRangeState::kImporting);
  importing_blocks_ += NumImported(*sequence);
  const uint32_t first_block = sequence->prefix.position.num_blocks;
  const std::vector<BlockId>& blocks = sequence->kv.blocks();
  environment_.transfer.StartImport(
      ImportId(sequence->id.value()), std::move(*sequence->request.kv_handle),
      first_block, {blocks.begin() + first_block, blocks.end()});
}

void LLMEngine::OnExportEnded(const KvExportEnded& event) {
  SequenceMetadata& sequence = Live(SequenceId(event.id.value()));
  absl::Status status = WithoutBlame(event.status);
  // The lease's deadline is not the request's: another attempt may do better.
  if (absl::IsDeadlineExceeded(status)) {
    status =
        absl::AbortedError("nobody pulled the KV before its lease ran out");
  } else if (absl::IsCancelled(status)) {
    // Unless kEnding says that it was us.
    status = absl::AbortedError(status.message());
  }
  if (sequence.phase() == SequencePhase::kEnding) {
    status = sequence.end_status;
  } else if (sequence.phase() == SequencePhase::kPrefilling) {
    scheduler_.Remove(&sequence);
    if (status.ok()) status = absl::AbortedError("pulled before it was there");
  }
  kv_.Release(&sequence.kv);
  --num_exporting_;
  Finish(&sequence, status);
}

void LLMEngine::OnImportEnded(const KvImportEnded& event) {
  SequenceMetadata& sequence = Live(SequenceId(event.id.value()));
  sequence.transfer_time = event.duration;
  sequence.transfer_bytes = event.bytes;
  importing_blocks_ -= NumImported(sequence);
  if (sequence.phase() == SequencePhase::kEnding) {
    kv_.Release(&sequence.kv);
    Finish(&sequence, sequence.end_status);
    return;
  }
  absl::StatusOr<KvTailEntry> first = TakeTail(event, model_, &sequence);
  if (!first.ok()) {
    scheduler_.Remove(&sequence);
    kv_.Release(&sequence.kv);
    Finish(&sequence, first.status());
    return;
  }
  sequence.imported = true;
  sequence.computed_rows = sequence.num_tokens();
  CacheCommittedRows(&sequence);
  kv_.Transition(&sequence.kv, KvRangeState::kOwned);
  sequence.SetPhase(SequencePhase::kDecoding);
  first->top.resize(kMaxTopLogprobs, {.token_id = kNoToken});
  AppendTokens(&sequence, {&first->drawn, 1}, first->top);
}

}  // namespace baton
